//! Random operations on buffers against a plain model of chunks and bytes.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};
use vmm::{Allocator, Buffer, ErrorKind, SleepingBuffer, Slice};

use super::exact;
use crate::driver::Choice;
use crate::{Case, Context, Failure, cases};

pub const CASES: &[Case] = cases![
    random_operations_agree_with_a_plain_model: timeout(300),
    random_operations_of_many_threads_agree_with_plain_models: timeout(300),
];

/// A granule is as many units, each of which holds one value.
const UNITS: usize = 16;

/// Numbers choose among what is alive when the operation comes.
#[derive(Clone, Debug)]
enum Op {
    Allocate {
        granules: usize,
        capacity: usize,
    },
    Grow {
        which: usize,
        by: usize,
    },
    Shrink {
        which: usize,
        to: usize,
    },
    Alias {
        which: usize,
    },
    Slice {
        which: usize,
        from: usize,
        len: usize,
    },
    Fill {
        which: usize,
        unit: usize,
        value: u8,
    },
    Write {
        which: usize,
        unit: usize,
        value: u8,
    },
    Copy {
        from: usize,
        to: usize,
    },
    Read {
        which: usize,
    },
    Sleep {
        which: usize,
        contents: bool,
    },
    Wake {
        which: usize,
    },
    Close {
        which: usize,
    },
    Drop {
        which: usize,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let which = || 0..8_usize;
    prop_oneof![
        3 => (0..4_usize, 0..8_usize).prop_map(|(granules, capacity)| Op::Allocate { granules, capacity }),
        4 => (which(), 0..3_usize).prop_map(|(which, by)| Op::Grow { which, by }),
        2 => (which(), 0..6_usize).prop_map(|(which, to)| Op::Shrink { which, to }),
        1 => which().prop_map(|which| Op::Alias { which }),
        1 => (which(), 0..40_usize, 0..40_usize).prop_map(|(which, from, len)| Op::Slice { which, from, len }),
        4 => (which(), 0..100_usize, any::<u8>()).prop_map(|(which, unit, value)| Op::Fill { which, unit, value }),
        4 => (which(), 0..100_usize, any::<u8>()).prop_map(|(which, unit, value)| Op::Write { which, unit, value }),
        1 => (which(), which()).prop_map(|(from, to)| Op::Copy { from, to }),
        3 => which().prop_map(|which| Op::Read { which }),
        2 => (which(), any::<bool>()).prop_map(|(which, contents)| Op::Sleep { which, contents }),
        2 => which().prop_map(|which| Op::Wake { which }),
        1 => which().prop_map(|which| Op::Close { which }),
        3 => which().prop_map(|which| Op::Drop { which }),
    ]
}

/// What the crate made, and what the model knows of it.
struct Entry {
    real: Real,
    /// The chunks by the model's own numbers, in order.
    chunks: Vec<usize>,
    /// Granules.
    len: usize,
}

enum Real {
    Awake(Buffer),
    Asleep(SleepingBuffer),
    Part(Slice, usize),
}

struct Model<'a> {
    allocator: &'a Allocator,
    unit: usize,
    entries: Vec<Entry>,
    /// The values of each chunk that was ever made; `None` for a unit that nobody has written.
    values: BTreeMap<usize, Vec<Option<u8>>>,
    made: usize,
}

type Checked<T = ()> = Result<T, TestCaseError>;

fn ok<T, E: std::fmt::Display>(result: Result<T, E>) -> Checked<T> {
    result.map_err(|error| TestCaseError::fail(error.to_string()))
}

impl<'a> Model<'a> {
    fn new(allocator: &'a Allocator) -> Self {
        let unit = allocator.granularity() / UNITS;
        Model {
            allocator,
            unit,
            entries: Vec::new(),
            values: BTreeMap::new(),
            made: 0,
        }
    }

    fn granule(&self) -> usize {
        self.allocator.granularity()
    }

    fn chunk(&mut self, granules: usize) -> usize {
        self.made += 1;
        self.values.insert(self.made, vec![None; granules * UNITS]);
        self.made
    }

    /// The unit of a buffer as chunk and place in it.
    fn place(&self, chunks: &[usize], unit: usize) -> Option<(usize, usize)> {
        let mut before = 0;
        for chunk in chunks {
            let units = self.values.get(chunk)?.len();
            if unit < before + units {
                return Some((*chunk, unit - before));
            }
            before += units;
        }
        None
    }

    fn awake(&self, which: usize) -> Option<(usize, &Buffer)> {
        let awake: Vec<_> = self
            .entries
            .iter()
            .enumerate()
            .filter_map(|(index, entry)| match &entry.real {
                Real::Awake(buffer) => Some((index, buffer)),
                _ => None,
            })
            .collect();
        awake.get(which % awake.len().max(1)).copied()
    }

    fn add(&mut self, buffer: Buffer, chunks: Vec<usize>) -> Checked {
        let len = buffer.len() / self.granule();
        prop_assert_eq!(buffer.chunk_count(), chunks.len());
        for (chunk, id) in buffer.chunks().zip(&chunks) {
            prop_assert_eq!(
                Some(chunk.size / self.unit),
                self.values.get(id).map(Vec::len)
            );
        }
        self.entries.push(Entry {
            real: Real::Awake(buffer),
            chunks,
            len,
        });
        Ok(())
    }

    fn set(&mut self, chunks: &[usize], unit: usize, value: Option<u8>) {
        if let Some((chunk, at)) = self.place(chunks, unit)
            && let Some(slot) = self
                .values
                .get_mut(&chunk)
                .and_then(|values| values.get_mut(at))
        {
            *slot = value;
        }
    }

    fn get(&self, chunks: &[usize], unit: usize) -> Option<u8> {
        let (chunk, at) = self.place(chunks, unit)?;
        *self.values.get(&chunk)?.get(at)?
    }

    fn step(&mut self, op: &Op) -> Checked {
        let granule = self.granule();
        match *op {
            Op::Allocate { granules, capacity } => {
                let buffer = ok(self
                    .allocator
                    .allocate_with_capacity(granules * granule, capacity * granule))?;
                prop_assert_eq!(buffer.capacity(), granules.max(capacity) * granule);
                let chunks = if granules > 0 {
                    vec![self.chunk(granules)]
                } else {
                    Vec::new()
                };
                self.add(buffer, chunks)
            }
            Op::Grow { which, by } => {
                let Some((index, buffer)) = self.awake(which) else {
                    return Ok(());
                };
                let (len, mapped) = (buffer.len() + by * granule, buffer.mapped_len());
                let room = buffer.capacity() - mapped;
                let grown = ok(buffer.grow(len))?;
                if buffer.mapped_len() > 0 && len <= mapped {
                    prop_assert_eq!(grown.address(), buffer.address());
                }
                // Alone in its range, a buffer never moves before the room is used up.
                let mut chunks = self.entries[index].chunks.clone();
                let shared = self.shares(index);
                if !shared && len - mapped.min(len) <= room && mapped > 0 {
                    let buffer = match &self.entries[index].real {
                        Real::Awake(buffer) => buffer,
                        _ => return Ok(()),
                    };
                    prop_assert_eq!(grown.address(), buffer.address());
                }
                if len > mapped {
                    chunks.push(self.chunk((len - mapped) / granule));
                }
                self.add(grown, chunks)
            }
            Op::Shrink { which, to } => {
                let Some((index, buffer)) = self.awake(which) else {
                    return Ok(());
                };
                let to = to.min(buffer.len() / granule);
                let shorter = ok(buffer.shrink(to * granule))?;
                prop_assert_eq!(shorter.address(), buffer.address());
                let (mut chunks, mut units) = (Vec::new(), 0);
                for chunk in &self.entries[index].chunks {
                    if units >= to * UNITS {
                        break;
                    }
                    units += self.values.get(chunk).map_or(0, Vec::len);
                    chunks.push(*chunk);
                }
                self.add(shorter, chunks)
            }
            Op::Alias { which } => {
                let Some((index, buffer)) = self.awake(which) else {
                    return Ok(());
                };
                let alias = buffer.alias();
                let chunks = self.entries[index].chunks.clone();
                self.add(alias, chunks)
            }
            Op::Slice { which, from, len } => {
                let Some((index, buffer)) = self.awake(which) else {
                    return Ok(());
                };
                let units = buffer.len() / self.unit;
                let from = from.min(units);
                let len = len.min(units - from);
                let part = ok(buffer.slice(from * self.unit..(from + len) * self.unit))?;
                let entry = &self.entries[index];
                let (chunks, length) = (entry.chunks.clone(), entry.len);
                self.entries.push(Entry {
                    real: Real::Part(part, from),
                    chunks,
                    len: length,
                });
                Ok(())
            }
            Op::Fill { which, unit, value } => self.put(which, unit, value, true),
            Op::Write { which, unit, value } => self.put(which, unit, value, false),
            Op::Copy { from, to } => {
                let (Some((source, a)), Some((target, b))) = (self.awake(from), self.awake(to))
                else {
                    return Ok(());
                };
                let units = a.len().min(b.len()) / self.unit / 2;
                let overlap = self.entries[source]
                    .chunks
                    .iter()
                    .any(|chunk| self.entries[target].chunks.contains(chunk));
                if overlap || units == 0 {
                    return Ok(());
                }
                ok(a.copy_to(0, b, 0, units * self.unit))?;
                ok(a.synchronize())?;
                let (a, b) = (
                    self.entries[source].chunks.clone(),
                    self.entries[target].chunks.clone(),
                );
                for unit in 0..units {
                    self.set(&b, unit, self.get(&a, unit));
                }
                Ok(())
            }
            Op::Read { which } => {
                if self.entries.is_empty() {
                    return Ok(());
                }
                self.check(&self.entries[which % self.entries.len()])
            }
            Op::Sleep { which, contents } => {
                let Some((index, _)) = self.awake(which) else {
                    return Ok(());
                };
                let shared = self.shares(index);
                let entry = self.entries.swap_remove(index);
                let Real::Awake(buffer) = entry.real else {
                    return Ok(());
                };
                let result = if contents {
                    buffer.sleep_with_contents(|_| {})
                } else {
                    buffer.sleep()
                };
                let real = match result {
                    Ok(asleep) => {
                        prop_assert!(!shared, "it fell asleep though it is shared");
                        // Fresh memory holds nothing that anybody may count on.
                        let len = entry.len * UNITS;
                        for unit in 0.. {
                            if self.place(&entry.chunks, unit).is_none() {
                                break;
                            }
                            if !contents || unit >= len {
                                self.set(&entry.chunks, unit, None);
                            }
                        }
                        Real::Asleep(asleep)
                    }
                    Err(failed) => {
                        prop_assert!(shared, "{}", failed.error);
                        prop_assert_eq!(failed.error.kind(), ErrorKind::Aliased);
                        Real::Awake(*failed.buffer)
                    }
                };
                self.entries.push(Entry { real, ..entry });
                Ok(())
            }
            Op::Wake { which } => {
                let asleep = |entry: &Entry| matches!(entry.real, Real::Asleep(_));
                let count = self.entries.iter().filter(|entry| asleep(entry)).count();
                let found = self
                    .entries
                    .iter()
                    .enumerate()
                    .filter(|(_, entry)| asleep(entry))
                    .nth(which % count.max(1));
                let Some((index, _)) = found else {
                    return Ok(());
                };
                let entry = self.entries.swap_remove(index);
                let Real::Asleep(asleep) = entry.real else {
                    return Ok(());
                };
                let address = asleep.address();
                let buffer = ok(asleep.wake())?;
                prop_assert_eq!(buffer.address(), address);
                self.add(buffer, entry.chunks)
            }
            Op::Close { which } => {
                let Some((index, _)) = self.awake(which) else {
                    return Ok(());
                };
                match self.entries.swap_remove(index).real {
                    Real::Awake(buffer) => ok(buffer.close()),
                    _ => Ok(()),
                }
            }
            Op::Drop { which } => {
                if !self.entries.is_empty() {
                    let index = which % self.entries.len();
                    self.entries.swap_remove(index);
                }
                Ok(())
            }
        }
    }

    /// Whether another entry has a chunk of this one.
    fn shares(&self, index: usize) -> bool {
        let chunks = &self.entries[index].chunks;
        self.entries.iter().enumerate().any(|(other, entry)| {
            other != index && entry.chunks.iter().any(|chunk| chunks.contains(chunk))
        })
    }

    fn put(&mut self, which: usize, unit: usize, value: u8, fill: bool) -> Checked {
        let Some((index, buffer)) = self.awake(which) else {
            return Ok(());
        };
        let units = buffer.len() / self.unit;
        let offset = unit * self.unit;
        let result = match fill {
            true => buffer.fill(offset, self.unit, value),
            false => buffer.write(offset, &vec![value; self.unit]),
        };
        if unit >= units {
            let kind = result.map_err(|error| error.kind());
            prop_assert_eq!(kind, Err(ErrorKind::OutOfBounds));
            return Ok(());
        }
        ok(result)?;
        let chunks = self.entries[index].chunks.clone();
        self.set(&chunks, unit, Some(value));
        Ok(())
    }

    /// That every byte is what the model says.
    fn check(&self, entry: &Entry) -> Checked {
        let (bytes, first) = match &entry.real {
            Real::Awake(buffer) => {
                let mut bytes = vec![0; buffer.len()];
                ok(buffer.read(0, &mut bytes))?;
                (bytes, 0)
            }
            Real::Part(part, from) => {
                let mut bytes = vec![0; part.len()];
                ok(part.read(0, &mut bytes))?;
                (bytes, *from)
            }
            Real::Asleep(_) => return Ok(()),
        };
        for (index, unit) in bytes.chunks(self.unit).enumerate() {
            if let Some(value) = self.get(&entry.chunks, first + index) {
                prop_assert!(
                    unit.iter().all(|&byte| byte == value),
                    "unit {} holds {} and not {value}",
                    first + index,
                    unit[0]
                );
            }
        }
        Ok(())
    }
}

fn run(allocator: &Allocator, sequences: u32) -> Result<(), Failure> {
    let config = ProptestConfig {
        cases: sequences,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let strategy = prop::collection::vec(op(), 1..30);
    let result = TestRunner::new(config).run(&strategy, |ops| {
        let mut model = Model::new(allocator);
        ops.iter().try_for_each(|op| model.step(op))?;
        model
            .entries
            .iter()
            .try_for_each(|entry| model.check(entry))
    });
    result.map_err(|error| Failure::new(error.to_string()))
}

fn sequences(context: &Context) -> u32 {
    if *context.choice() == Choice::Emulator {
        2000
    } else {
        60
    }
}

fn random_operations_agree_with_a_plain_model(context: &Context) -> Result<(), Failure> {
    let (allocator, _) = exact(context)?;
    context.leaves_nothing(|| run(&allocator, sequences(context)))
}

fn random_operations_of_many_threads_agree_with_plain_models(
    context: &Context,
) -> Result<(), Failure> {
    let (allocator, _) = exact(context)?;
    let each = sequences(context) / 4;
    context.leaves_nothing(|| {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| run(&allocator, each)))
                .collect();
            threads.into_iter().try_for_each(|thread| {
                thread
                    .join()
                    .map_err(|_| Failure::new("a thread panicked"))?
            })
        })
    })
}
