//! A capture that forks to other streams through events ends well where all of their work was
//! joined back.

mod common;

use common::code;
use vmm_emulator::Config;
use vmm_sys::*;

const SIZE: usize = 2 << 20;

struct Rig {
    driver: Driver,
    memory: CUdeviceptr,
    streams: [CUstream; 3],
}

impl Rig {
    fn new() -> Self {
        let driver = Config::new().install().unwrap().driver().unwrap();
        let (mut context, mut memory) = (std::ptr::null_mut(), 0);
        let mut streams = [std::ptr::null_mut(); 3];
        // SAFETY: pointers to locals, handles of this driver.
        unsafe {
            driver.cuInit(0).unwrap();
            driver.cuDevicePrimaryCtxRetain(&mut context, 0).unwrap();
            driver.cuCtxSetCurrent(context).unwrap();
            driver.cuMemAlloc(&mut memory, SIZE).unwrap();
            for stream in &mut streams {
                driver.cuStreamCreate(stream, 1).unwrap();
            }
        }
        Self {
            driver,
            memory,
            streams,
        }
    }

    fn work(&self, stream: usize) {
        let stream = self.streams[stream];
        // SAFETY: memory and stream are alive.
        unsafe { self.driver.cuMemsetD8Async(self.memory, 1, 16, stream) }.unwrap();
    }

    /// An event of where the stream is now.
    fn event(&self, stream: usize) -> CUevent {
        let mut event = std::ptr::null_mut();
        // SAFETY: a pointer to a local, handles of this driver.
        unsafe {
            self.driver.cuEventCreate(&mut event, 2).unwrap();
            self.driver
                .cuEventRecord(event, self.streams[stream])
                .unwrap();
        }
        event
    }

    fn wait(&self, stream: usize, event: CUevent) -> CUresult {
        // SAFETY: handles of this driver.
        code(unsafe {
            self.driver
                .cuStreamWaitEvent(self.streams[stream], event, 0)
        })
    }

    /// Lets one stream wait for another.
    fn after(&self, stream: usize, other: usize) {
        let event = self.event(other);
        assert_eq!(self.wait(stream, event), CUresult::CUDA_SUCCESS);
    }

    /// How a capture of the first stream ends that all this is in; no stream captures afterwards.
    fn captured(&self, body: impl FnOnce(&Self)) -> CUresult {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        let mut graph = std::ptr::null_mut();
        // SAFETY: pointers to locals, handles of this driver.
        unsafe {
            self.driver
                .cuStreamBeginCapture(self.streams[0], mode)
                .unwrap();
            body(self);
            let ended = code(self.driver.cuStreamEndCapture(self.streams[0], &mut graph));
            for stream in self.streams {
                self.driver.cuStreamQuery(stream).unwrap();
            }
            ended
        }
    }
}

#[test]
fn a_capture_is_joined_when_its_stream_waits_for_the_last_work_of_all_others() {
    let unjoined = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    let success = CUresult::CUDA_SUCCESS;
    let rig = Rig::new();
    let fork_and_join = rig.captured(|rig| {
        rig.work(0);
        rig.after(1, 0);
        rig.work(1);
        rig.after(0, 1);
        rig.work(0);
    });
    assert_eq!(fork_and_join, success);
    let never_joined = rig.captured(|rig| {
        rig.after(1, 0);
        rig.work(1);
    });
    assert_eq!(never_joined, unjoined);
    let work_after_the_join = rig.captured(|rig| {
        rig.after(1, 0);
        rig.work(1);
        rig.after(0, 1);
        rig.work(1);
    });
    assert_eq!(work_after_the_join, unjoined);
    let through_a_third = rig.captured(|rig| {
        rig.after(1, 0);
        rig.work(1);
        rig.after(2, 1);
        rig.work(2);
        rig.after(0, 2);
    });
    assert_eq!(through_a_third, success);
    let the_third_alone = rig.captured(|rig| {
        rig.after(1, 0);
        rig.after(2, 1);
        rig.work(2);
        rig.after(0, 1);
    });
    assert_eq!(the_third_alone, unjoined);
    let event_before_the_work = rig.captured(|rig| {
        rig.after(1, 0);
        let early = rig.event(1);
        rig.work(1);
        assert_eq!(rig.wait(0, early), success);
    });
    assert_eq!(event_before_the_work, unjoined);

    let mut stale = std::ptr::null_mut();
    let no_fork = rig.captured(|rig| stale = rig.event(0));
    assert_eq!(no_fork, success);
    let too_late = rig.wait(1, stale);
    assert_eq!(too_late, CUresult::CUDA_ERROR_INVALID_VALUE);
    rig.work(1);
    // SAFETY: a handle of this driver, which captures nothing.
    unsafe { rig.driver.cuStreamSynchronize(rig.streams[1]) }.unwrap();
}
