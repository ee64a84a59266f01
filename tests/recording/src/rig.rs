//! What a case works with: the driver, and everything the case made, to be undone.

use std::ffi::{CString, c_int, c_uint, c_void};
use std::ptr::{null, null_mut};
use std::sync::Arc;
use vmm_sys::*;

/// Calls the driver. Cases ask what a driver answers to right and wrong use; what would crash it
/// is not asked, and pointers that are not null point to locals or to memory of the case.
macro_rules! d {
    ($rig:expr, $name:ident($($argument:expr),* $(,)?)) => {{
        // The rig's handles and addresses come from this driver.
        #[allow(clippy::undocumented_unsafe_blocks)] // said above, once for all cases
        let called = unsafe { $rig.driver.$name($($argument),*) };
        called
    }};
}
pub(crate) use d;

/// An answer in words, or the step before the question that failed.
pub type Answer = Result<String, String>;
/// What a driver call gives.
pub type Called = Result<(), Error>;

pub const M: usize = 1 << 20;
/// The granularity of every driver that was recorded so far.
pub const G: usize = 2 * M;
pub const FD: u32 = 1;
pub const DEVICE: u32 = 1;
pub const HOST: u32 = 2;
pub const NUMA: u32 = 3;

pub type ProcAddress = unsafe extern "C" fn(
    *const std::ffi::c_char,
    *mut *mut c_void,
    c_int,
    cuuint64_t,
    *mut CUdriverProcAddressQueryResult,
) -> CUresult;

pub struct Rig {
    pub driver: Arc<Driver>,
    proc_address: ProcAddress,
    context: CUcontext,
    handles: Vec<u64>,
    reservations: Vec<(u64, usize)>,
    mappings: Vec<(u64, usize)>,
    fds: Vec<c_int>,
    streams: Vec<CUstream>,
    events: Vec<CUevent>,
    /// A value for copies of four bytes.
    pub one: u32,
}

impl Rig {
    pub fn load(name: &str) -> Result<Self, String> {
        let proc_address: ProcAddress = match name {
            "emulator" => vmm_emulator::get_proc_address,
            name => {
                let path = if name == "cuda" { "libcuda.so.1" } else { name };
                // SAFETY: whoever names the library says that it is a driver.
                let library =
                    unsafe { libloading::Library::new(path) }.map_err(|error| error.to_string())?;
                // SAFETY: the type is that of the symbol, and the library is never unloaded.
                let found = unsafe { library.get::<ProcAddress>(c"cuGetProcAddress_v2") };
                let found = *found.map_err(|error| error.to_string())?;
                std::mem::forget(library);
                found
            }
        };
        // SAFETY: a driver's cuGetProcAddress that stays loaded.
        let driver = unsafe { Driver::from_get_proc_address(proc_address) }
            .map_err(|error| error.to_string())?;
        Ok(Self {
            driver: Arc::new(driver),
            proc_address,
            context: null_mut(),
            handles: Vec::new(),
            reservations: Vec::new(),
            mappings: Vec::new(),
            fds: Vec::new(),
            streams: Vec::new(),
            events: Vec::new(),
            one: 1,
        })
    }

    pub fn ready(&self) -> bool {
        !self.context.is_null()
    }

    /// Initialises and takes the primary context of device 0, without making it current.
    pub fn prepare(&mut self) -> Result<(), String> {
        setup(d!(self, cuInit(0)))?;
        setup(d!(self, cuDevicePrimaryCtxRetain(&mut self.context, 0)))
    }

    pub fn context(&self) -> CUcontext {
        self.context
    }

    /// Makes the primary context current until the case ends.
    pub fn current(&self) -> Result<(), String> {
        setup(d!(self, cuCtxSetCurrent(self.context)))
    }

    pub fn device_name(&self) -> String {
        let mut name = [0_u8; 96];
        let called = d!(self, cuDeviceGetName(name.as_mut_ptr().cast(), 96, 0));
        match called {
            Ok(()) => {
                String::from_utf8_lossy(name.split(|byte| *byte == 0).next().unwrap_or_default())
                    .into_owned()
            }
            Err(error) => error.to_string(),
        }
    }

    /// `cuGetProcAddress` in words; a name of `None` is a null pointer.
    pub fn find(&self, name: Option<&str>, tag: c_int, flags: u64) -> String {
        let name = name.and_then(|name| CString::new(name).ok());
        let marker = 0x77 as *mut c_void;
        let (mut function, mut status) = (marker, CUdriverProcAddressQueryResult(77));
        let pointer = name.as_ref().map_or(null(), |name| name.as_ptr());
        // SAFETY: pointers to locals.
        let code = unsafe { (self.proc_address)(pointer, &mut function, tag, flags, &mut status) };
        let function = match function {
            found if found.is_null() => "null",
            found if found == marker => "not written",
            _ => "found",
        };
        let status = if status.0 == 77 {
            "not written".to_owned()
        } else {
            status.0.to_string()
        };
        format!(
            "{}, function {function}, query result {status}",
            name_of(code)
        )
    }

    /// Whether two versions of a symbol are different functions.
    pub fn differ(&self, name: &str, one: c_int, other: c_int) -> bool {
        self.address(name, one, 0) != self.address(name, other, 0)
    }

    /// What a name, a version and flags lead to; null where there is nothing.
    pub fn address(&self, name: &str, tag: c_int, flags: u64) -> *mut c_void {
        let name = CString::new(name).unwrap_or_default();
        let mut function = null_mut();
        // SAFETY: pointers to locals.
        unsafe { (self.proc_address)(name.as_ptr(), &mut function, tag, flags, null_mut()) };
        function
    }

    pub fn prop(&self, kind: u32, id: c_int, handle_types: u32) -> CUmemAllocationProp {
        CUmemAllocationProp {
            type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: CUmemAllocationHandleType(handle_types),
            location: CUmemLocation::new(CUmemLocationType(kind), id),
            ..Default::default()
        }
    }

    pub fn create(&mut self, size: usize, prop: &CUmemAllocationProp, flags: u64) -> Called {
        let mut handle = 0;
        d!(self, cuMemCreate(&mut handle, size, prop, flags))?;
        self.handles.push(handle);
        Ok(())
    }

    /// Memory on device 0 that can be exported.
    pub fn memory(&mut self, size: usize) -> Result<u64, String> {
        self.memory_at(size, DEVICE, FD)
    }

    pub fn memory_at(&mut self, size: usize, kind: u32, handle_types: u32) -> Result<u64, String> {
        let prop = self.prop(kind, 0, handle_types);
        setup(self.create(size, &prop, 0))?;
        self.handles
            .last()
            .copied()
            .ok_or_else(|| "no handle".into())
    }

    pub fn release(&mut self, handle: u64) -> Called {
        let called = d!(self, cuMemRelease(handle));
        if called.is_ok()
            && let Some(index) = self.handles.iter().position(|known| *known == handle)
        {
            self.handles.swap_remove(index);
        }
        called
    }

    /// A handle value that the driver gave and that is to be released as well.
    pub fn adopt(&mut self, handle: u64) {
        self.handles.push(handle);
    }

    pub fn reserve_raw(
        &mut self,
        size: usize,
        alignment: usize,
        hint: u64,
        flags: u64,
    ) -> Result<u64, Error> {
        let mut address = 0;
        d!(
            self,
            cuMemAddressReserve(&mut address, size, alignment, hint, flags)
        )?;
        self.reservations.push((address, size));
        Ok(address)
    }

    pub fn reserve(&mut self, size: usize) -> Result<u64, String> {
        self.reserve_raw(size, 0, 0, 0)
            .map_err(|error| error.to_string())
    }

    pub fn free(&mut self, address: u64, size: usize) -> Called {
        let called = d!(self, cuMemAddressFree(address, size));
        if called.is_ok() {
            self.reservations.retain(|known| *known != (address, size));
        }
        called
    }

    pub fn map(
        &mut self,
        address: u64,
        size: usize,
        offset: usize,
        handle: u64,
        flags: u64,
    ) -> Called {
        d!(self, cuMemMap(address, size, offset, handle, flags))?;
        self.mappings.push((address, size));
        Ok(())
    }

    pub fn unmap(&mut self, address: u64, size: usize) -> Called {
        let called = d!(self, cuMemUnmap(address, size));
        if called.is_ok() {
            let end = address + size as u64;
            self.mappings
                .retain(|(start, _)| *start < address || *start >= end);
        }
        called
    }

    pub fn access(&self, address: u64, size: usize, kind: u32, id: c_int, flags: u32) -> Called {
        let desc = CUmemAccessDesc {
            location: CUmemLocation::new(CUmemLocationType(kind), id),
            flags: CUmemAccess_flags(flags),
        };
        d!(self, cuMemSetAccess(address, size, &desc, 1))
    }

    pub fn get_access(&self, address: u64, kind: u32, id: c_int) -> Result<u64, Error> {
        let location = CUmemLocation::new(CUmemLocationType(kind), id);
        let mut flags = 77;
        d!(self, cuMemGetAccess(&mut flags, &location, address))?;
        Ok(flags)
    }

    /// Chunks of device memory, mapped one after the other with this access in one reservation.
    pub fn mapped(&mut self, chunks: &[usize], access: u32) -> Result<u64, String> {
        let total = chunks.iter().sum();
        let address = self.reserve(total)?;
        let mut at = address;
        for size in chunks {
            let handle = self.memory(*size)?;
            setup(self.map(at, *size, 0, handle, 0))?;
            if access != 0 {
                setup(self.access(at, *size, DEVICE, 0, access))?;
            }
            at += *size as u64;
        }
        Ok(address)
    }

    /// Chunks of one granule, of these kinds of memory, each with access for who it lies with and for
    /// the device.
    pub fn side_by_side(&mut self, kinds: &[u32]) -> Result<u64, String> {
        let address = self.reserve(kinds.len() * G)?;
        let mut at = address;
        for &kind in kinds {
            let handle = self.memory_at(G, kind, 0)?;
            setup(self.map(at, G, 0, handle, 0))?;
            setup(self.access(at, G, DEVICE, 0, 3))?;
            if kind != DEVICE {
                setup(self.access(at, G, kind, 0, 3))?;
            }
            at += G as u64;
        }
        Ok(address)
    }

    /// The handle of the nth allocation of this case.
    pub fn handle(&self, nth: usize) -> u64 {
        self.handles.get(nth).copied().unwrap_or(0)
    }

    /// The address of the first mapping of this case.
    pub fn mapped_address(&self) -> u64 {
        self.mappings.first().map_or(0, |mapping| mapping.0)
    }

    /// The address of the last reservation of this case.
    pub fn spare_address(&self) -> u64 {
        self.reservations
            .last()
            .map_or(0, |reservation| reservation.0)
    }

    pub fn first_stream(&self) -> CUstream {
        self.streams.first().copied().unwrap_or(null_mut())
    }

    pub fn second_stream(&self) -> CUstream {
        self.streams.get(1).copied().unwrap_or(null_mut())
    }

    pub fn first_event(&self) -> CUevent {
        self.events.first().copied().unwrap_or(null_mut())
    }

    pub fn export(&mut self, handle: u64) -> Result<c_int, Error> {
        let mut fd = -1;
        d!(
            self,
            cuMemExportToShareableHandle(
                (&raw mut fd).cast(),
                handle,
                CUmemAllocationHandleType(FD),
                0
            )
        )?;
        self.fds.push(fd);
        Ok(fd)
    }

    pub fn import(&mut self, fd: c_int) -> Result<u64, Error> {
        let mut handle = 0;
        let value = fd as isize as *mut c_void;
        d!(
            self,
            cuMemImportFromShareableHandle(&mut handle, value, CUmemAllocationHandleType(FD))
        )?;
        self.handles.push(handle);
        Ok(handle)
    }

    pub fn close(&mut self, fd: c_int) {
        self.fds.retain(|known| *known != fd);
        // SAFETY: it was open and is not used again.
        unsafe { rustix::io::close(fd) };
    }

    pub fn stream(&mut self, flags: c_uint) -> Result<CUstream, String> {
        let mut stream = null_mut();
        setup(d!(self, cuStreamCreate(&mut stream, flags)))?;
        self.streams.push(stream);
        Ok(stream)
    }

    pub fn event(&mut self) -> Result<CUevent, String> {
        let mut event = null_mut();
        setup(d!(self, cuEventCreate(&mut event, 0)))?;
        self.events.push(event);
        Ok(event)
    }

    pub fn begin(&self, stream: CUstream, mode: u32) -> Called {
        d!(
            self,
            cuStreamBeginCapture(stream, CUstreamCaptureMode(mode))
        )
    }

    /// Ends a capture and throws the graph away.
    pub fn end(&self, stream: CUstream) -> Called {
        let mut graph = null_mut();
        d!(self, cuStreamEndCapture(stream, &mut graph))?;
        if !graph.is_null() {
            d!(self, cuGraphDestroy(graph))?;
        }
        Ok(())
    }

    pub fn status(&self, stream: CUstream) -> String {
        let mut status = CUstreamCaptureStatus(77);
        match d!(self, cuStreamIsCapturing(stream, &mut status)) {
            Ok(()) => format!("status {}", status.0),
            Err(error) => error_name(&error),
        }
    }

    pub fn exchange(&self, mode: u32) -> Result<u32, Error> {
        let mut mode = CUstreamCaptureMode(mode);
        d!(self, cuThreadExchangeStreamCaptureMode(&mut mode))?;
        Ok(mode.0)
    }

    pub fn free_memory(&self) -> Result<usize, String> {
        let (mut free, mut total) = (0, 0);
        setup(d!(self, cuMemGetInfo(&mut free, &mut total)))?;
        Ok(free)
    }

    /// Makes the work of memsets on streams last, on the emulator in this program.
    pub fn slow_down(&self, on: bool) {
        let latency = std::time::Duration::from_millis(if on { 200 } else { 0 });
        vmm_emulator::Emulator::current().latency("cuMemsetD8Async", latency);
    }

    /// Undoes what the case left, whatever state that is in.
    pub fn clean(&mut self) {
        if !self.ready() {
            return;
        }
        let _ = d!(self, cuCtxSetCurrent(self.context));
        let _ = self.exchange(0);
        if self.driver.is_emulator() {
            self.slow_down(false);
        }
        for stream in std::mem::take(&mut self.streams) {
            let _ = self.end(stream);
            let _ = d!(self, cuStreamSynchronize(stream));
            let _ = d!(self, cuStreamDestroy(stream));
        }
        for event in std::mem::take(&mut self.events) {
            let _ = d!(self, cuEventDestroy(event));
        }
        for (address, size) in std::mem::take(&mut self.mappings) {
            let _ = d!(self, cuMemUnmap(address, size));
        }
        for handle in std::mem::take(&mut self.handles) {
            let _ = d!(self, cuMemRelease(handle));
        }
        for (address, size) in std::mem::take(&mut self.reservations) {
            let _ = d!(self, cuMemAddressFree(address, size));
        }
        for fd in std::mem::take(&mut self.fds) {
            // SAFETY: the case is over and nobody else knows the number.
            unsafe { rustix::io::close(fd) };
        }
        let _ = d!(self, cuCtxSetCurrent(null_mut()));
    }
}

/// A step that has to succeed before the question.
pub fn setup(called: Called) -> Result<(), String> {
    called.map_err(|error| error.to_string())
}

/// The answer of a call by its C name.
pub fn code(called: Called) -> String {
    match called {
        Ok(()) => "CUDA_SUCCESS".into(),
        Err(error) => error_name(&error),
    }
}

/// The answer of a call that also gives a value.
pub fn value<T: ToString>(called: Result<T, Error>) -> String {
    match called {
        Ok(value) => format!("CUDA_SUCCESS, {}", value.to_string()),
        Err(error) => error_name(&error),
    }
}

pub fn error_name(error: &Error) -> String {
    error.code().map_or_else(|| "missing".into(), name_of)
}

pub fn name_of(code: CUresult) -> String {
    code.name()
        .map_or_else(|| format!("CUresult {}", code.0), str::to_owned)
}
