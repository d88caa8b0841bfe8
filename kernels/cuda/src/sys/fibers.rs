//! Kernels as host code. Work is done when it is given, or put down to be done later, as often as wanted; copies that a
//! GPU does beside its kernels are done when somebody waits for them.

use std::collections::VecDeque;
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use hypic_kernels::op::DeviceMemory;

use crate::arena::{Arena, Memory, Now};
use crate::device::{Arrival, Kept, Order};
use crate::{Error, Result};

unsafe extern "C" {
    /// Runs a kernel by name, one pointer per argument; null, or what went wrong as a static string.
    fn hypic_fiber_launch(
        name: *const c_char,
        grid: *const u32,
        block: *const u32,
        shared: usize,
        order: u32,
        arguments: *mut *mut c_void,
    ) -> *const c_char;
}

/// Units of memory: vectors of the kernels are at most that wide.
pub(crate) type Units = Vec<u128>;

/// The device whose kernels are host code, and whose memory is the host's.
pub(crate) struct Fibers {
    order: Order,
    pub(crate) now: Now,
    arena: Arena<Units>,
    /// Bytes that were asked for and not taken back; what the arena has stays with it.
    used: AtomicU64,
    /// What is put down instead of done.
    tape: Mutex<Option<Tape>>,
    arriving: Mutex<Arriving>,
}

/// Copies in their order, each group done by whoever waits for it or a later one, and not before: what does not wait for
/// it finds the memory as it was.
#[derive(Default)]
struct Arriving {
    groups: VecDeque<(Arrival, Vec<HostCopy>, Kept)>,
    last: u64,
}

/// Bytes of host memory that are to be copied.
pub(crate) struct HostCopy {
    pub(crate) to: u64,
    pub(crate) from: u64,
    pub(crate) size: usize,
}

/// Work in its order.
#[derive(Default)]
pub(crate) struct Tape {
    work: Vec<Work>,
    /// Memory that was given up while it was recorded, and that the work still uses.
    kept: Vec<Units>,
}

/// What a device is given.
pub(crate) enum Work {
    Launch { kernel: String, grid: [u32; 3], threads: u32, shared: u32, arguments: Vec<u64> },
    Fill { at: u64, byte: u8, size: usize },
    Copy { to: u64, from: u64, size: usize },
}

impl Fibers {
    pub(crate) fn new(order: Order) -> Self {
        Self {
            order,
            now: Now::default(),
            arena: Arena::default(),
            used: AtomicU64::default(),
            tape: Mutex::default(),
            arriving: Mutex::default(),
        }
    }

    /// Memory of at least `size` bytes.
    pub(crate) fn allocate(&self, size: usize) -> Result<Memory<Units>> {
        let fresh = |size: usize| {
            let units: Units = vec![0; size.div_ceil(size_of::<u128>())];
            self.used.fetch_add(size_of_val(&*units) as u64, Ordering::Relaxed);
            Ok(units)
        };
        match self.now.is_step() {
            true => self.arena.take(&self.now, size, fresh),
            false => fresh(size).map(Memory::shared),
        }
    }

    /// What is used, and as much is held.
    pub(crate) fn memory(&self) -> DeviceMemory {
        let used = self.used.load(Ordering::Relaxed);
        DeviceMemory { used, held: used }
    }

    /// Takes memory back.
    pub(crate) fn give_back(&self, memory: Memory<Units>) {
        let Some(units) = self.arena.put(memory) else { return };
        self.used.fetch_sub(size_of_val(&*units) as u64, Ordering::Relaxed);
        // A panic while it was held leaves it whole, here and below.
        if let Some(tape) = &mut *self.tape.lock().unwrap_or_else(PoisonError::into_inner) {
            tape.kept.push(units);
        }
    }

    /// Copies when somebody waits for it.
    ///
    /// # Safety
    /// What is read is host memory that `kept` owns and nobody writes; what is written is nobody else's and stays until
    /// the copy was waited for.
    pub(crate) unsafe fn copy_later(&self, copies: Vec<HostCopy>, kept: Kept) -> Arrival {
        let mut arriving = self.arriving.lock().unwrap_or_else(PoisonError::into_inner);
        arriving.last += 1;
        let arrival = Arrival(arriving.last);
        arriving.groups.push_back((arrival, copies, kept));
        arrival
    }

    /// Does the copies up to `arrival`.
    pub(crate) fn wait_for_copy(&self, arrival: Arrival) {
        if arrival == Arrival::HERE {
            return;
        }
        let mut arriving = self.arriving.lock().unwrap_or_else(PoisonError::into_inner);
        let count = arriving.groups.partition_point(|(number, ..)| *number <= arrival);
        let done: Vec<_> = arriving.groups.drain(..count).collect();
        for HostCopy { to, from, size } in done.iter().flat_map(|(_, copies, _)| copies) {
            // SAFETY: whoever gave the copy answers for both sides until now.
            unsafe { std::ptr::copy_nonoverlapping(*from as *const u8, *to as *mut u8, *size) };
        }
        // What was read goes when others can wait again: it may be of a device with copies of its own.
        drop(arriving);
    }

    /// Puts down what is given from now on.
    pub(crate) fn begin_tape(&self) {
        *self.tape.lock().unwrap_or_else(PoisonError::into_inner) = Some(Tape::default());
    }

    /// What was put down; from now on work is done again.
    pub(crate) fn end_tape(&self) -> Tape {
        self.tape.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default()
    }

    /// Does `work`, or puts it down.
    ///
    /// # Errors
    /// [`Error::RunFibers`] what a kernel did wrong.
    ///
    /// # Safety
    /// Its addresses are of host memory as large as the work needs; that of a launch is what the kernel's contract asks
    /// for, in the order of its parameters. What is put down needs the memory whenever it is done.
    pub(crate) unsafe fn give(&self, work: Work) -> Result<()> {
        if let Some(tape) = &mut *self.tape.lock().unwrap_or_else(PoisonError::into_inner) {
            tape.work.push(work);
            return Ok(());
        }
        // SAFETY: the caller's.
        unsafe { self.run(&work) }
    }

    /// Does what was put down.
    ///
    /// # Errors
    /// [`Error::RunFibers`] what a kernel did wrong.
    pub(crate) fn play(&self, tape: &Tape) -> Result<()> {
        // SAFETY: whoever gave the work answers for it whenever it is done.
        tape.work.iter().try_for_each(|work| unsafe { self.run(work) })
    }

    /// # Safety
    /// As [`Fibers::give`].
    unsafe fn run(&self, work: &Work) -> Result<()> {
        match *work {
            Work::Fill { at, byte, size } => {
                // SAFETY: the caller's.
                unsafe { std::ptr::write_bytes(at as *mut u8, byte, size) };
                Ok(())
            }
            Work::Copy { to, from, size } => {
                // SAFETY: the caller's.
                unsafe { std::ptr::copy(from as *const u8, to as *mut u8, size) };
                Ok(())
            }
            Work::Launch { ref kernel, grid, threads, shared, ref arguments } => {
                let name = CString::new(kernel.as_str()).unwrap_or_default();
                let mut arguments = arguments.clone();
                let mut pointers: Vec<*mut c_void> =
                    arguments.iter_mut().map(|argument| std::ptr::from_mut(argument).cast()).collect();
                let block = [threads, 1, 1];
                // SAFETY: the caller's; the call returns when all fibers are done.
                let fault = unsafe {
                    hypic_fiber_launch(
                        name.as_ptr(),
                        grid.as_ptr(),
                        block.as_ptr(),
                        shared as usize,
                        self.order.code(),
                        pointers.as_mut_ptr(),
                    )
                };
                if fault.is_null() {
                    return Ok(());
                }
                // SAFETY: the faults are string literals.
                let fault = unsafe { CStr::from_ptr(fault) }.to_string_lossy().into_owned();
                Err(Error::RunFibers { kernel: kernel.clone(), fault })
            }
        }
    }
}
