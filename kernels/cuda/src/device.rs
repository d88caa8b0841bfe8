use std::any::Any;
use std::sync::Arc;
#[cfg(feature = "cuda")]
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use hypic_kernels::op::DeviceMemory;

#[cfg(any(feature = "fibers", not(feature = "cuda")))]
use crate::Error;
use crate::Result;
use crate::arena::{Now, always};
#[cfg(feature = "fibers")]
use crate::sys::Fibers;
#[cfg(feature = "cuda")]
use crate::sys::{Context, failed};

/// Where kernels run: a GPU with one stream, or fibers of this thread. Cheap to clone.
#[derive(Clone)]
pub struct Device {
    pub(crate) backend: Arc<Backend>,
}

pub(crate) enum Backend {
    #[cfg(feature = "cuda")]
    Cuda(Box<Context>),
    #[cfg(feature = "fibers")]
    Fibers(Fibers),
}

/// A copy to the device, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Arrival(pub(crate) u64);

impl Arrival {
    /// What needs not be waited for.
    pub(crate) const HERE: Self = Self(0);
}

/// What copies read, kept until they are done.
pub(crate) type Kept = Arc<dyn Any + Send + Sync>;

/// The order in which the fibers of a block take turns. A result that depends on it is a missing barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// By thread number.
    Forward,
    /// From the last thread to the first.
    Backward,
    /// Shuffled by a seed of at least 2.
    Shuffled(u32),
}

impl Order {
    #[cfg(feature = "fibers")]
    pub(crate) fn code(self) -> u32 {
        match self {
            Self::Forward => 0,
            Self::Backward => 1,
            Self::Shuffled(seed) => seed.max(2),
        }
    }
}

impl Device {
    /// GPU number `ordinal`, with a stream of its own and all kernels loaded.
    ///
    /// # Errors
    /// [`Error::NoDevice`] without a driver, without such a device, or without the `cuda` feature.
    pub fn cuda(ordinal: usize) -> Result<Self> {
        #[cfg(feature = "cuda")]
        return Ok(Self { backend: Arc::new(Backend::Cuda(Box::new(Context::open(ordinal)?))) });
        #[cfg(not(feature = "cuda"))]
        Err(Error::no_device(format!("this build has no cuda:{ordinal}, it lacks the feature `cuda`")))
    }

    /// The kernels as host code, run by the calling thread.
    #[cfg(feature = "fibers")]
    pub fn fibers(order: Order) -> Self {
        Self { backend: Arc::new(Backend::Fibers(Fibers::new(order))) }
    }

    /// Compute capability of the GPU, none for fibers.
    pub fn capability(&self) -> Option<(i32, i32)> {
        match &*self.backend {
            #[cfg(feature = "cuda")]
            Backend::Cuda(context) => Some(context.capability),
            #[cfg(feature = "fibers")]
            Backend::Fibers(_) => None,
        }
    }

    /// Multiprocessors of the GPU; one thread of fibers counts as one.
    pub(crate) fn multiprocessors(&self) -> usize {
        match &*self.backend {
            #[cfg(feature = "cuda")]
            Backend::Cuda(context) => context.multiprocessors,
            #[cfg(feature = "fibers")]
            Backend::Fibers(_) => 1,
        }
    }

    /// What its memory holds: on a GPU all of this process.
    ///
    /// # Errors
    /// What the driver says.
    pub fn memory(&self) -> Result<DeviceMemory> {
        match &*self.backend {
            #[cfg(feature = "cuda")]
            Backend::Cuda(context) => context.memory().map_err(failed("ask the memory pool")),
            #[cfg(feature = "fibers")]
            Backend::Fibers(fibers) => Ok(fibers.memory()),
        }
    }

    /// Lets these devices read each other's memory.
    ///
    /// # Errors
    /// As [`Device::enable_peer`].
    pub fn link(devices: &[&Self]) -> Result<()> {
        let mut pairs = devices.iter().flat_map(|of| devices.iter().map(move |reader| (of, reader)));
        pairs.try_for_each(|(of, reader)| reader.enable_peer(of))
    }

    /// Makes what comes next on each of these devices wait for what all of them were given so far; the host goes on.
    pub(crate) fn meet(devices: &[&Self]) -> Result<()> {
        let marks = devices.iter().map(|device| device.mark()).collect::<Result<Vec<_>>>()?;
        for (number, device) in devices.iter().enumerate() {
            for (_, mark) in marks.iter().enumerate().filter(|(other, _)| *other != number) {
                device.wait_for(mark)?;
            }
        }
        Ok(())
    }

    /// Lets everything that is given to the device from now on wait for what arrives; the host does not.
    ///
    /// # Errors
    /// What the driver says.
    pub(crate) fn wait_for_copy(&self, arrival: Arrival) -> Result<()> {
        match &*self.backend {
            #[cfg(feature = "cuda")]
            Backend::Cuda(context) => context.wait_for_copy(arrival),
            #[cfg(feature = "fibers")]
            Backend::Fibers(fibers) => {
                fibers.wait_for_copy(arrival);
                Ok(())
            }
        }
    }

    /// Waits until everything given to the device is done.
    ///
    /// # Errors
    /// What a kernel did wrong since the last wait.
    pub fn wait(&self) -> Result<()> {
        match &*self.backend {
            #[cfg(feature = "cuda")]
            Backend::Cuda(context) => {
                context.stream.synchronize().map_err(failed("finish the stream"))?;
                context.copies.lock().unwrap_or_else(PoisonError::into_inner).forget_done();
                Ok(())
            }
            #[cfg(feature = "fibers")]
            Backend::Fibers(_) => Ok(()),
        }
    }

    /// What the work is part of that is given now.
    pub(crate) fn now(&self) -> &Now {
        match &*self.backend {
            #[cfg(feature = "cuda")]
            Backend::Cuda(context) => &context.now,
            #[cfg(feature = "fibers")]
            Backend::Fibers(fibers) => &fibers.now,
        }
    }

    /// Runs `step` with memory from the arena, which lies at the same places when the step is run again; or a part of one
    /// without.
    pub(crate) fn in_arena<R>(&self, is_in: bool, step: impl FnOnce() -> R) -> R {
        let is_step = &self.now().is_step;
        let was_in = is_step.swap(is_in, Ordering::Relaxed);
        always(step, || is_step.store(was_in, Ordering::Relaxed))
    }

    /// Says that a weight or a pool is gone.
    pub(crate) fn note_gone(&self) {
        self.now().gone.fetch_add(1, Ordering::Relaxed);
    }

    /// How many weights and pools are gone: where it changes, nothing that was recorded is run again.
    pub(crate) fn gone(&self) -> u64 {
        self.now().gone.load(Ordering::Relaxed)
    }

    /// Whether both are one.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.backend, &other.backend)
    }

    /// Lets this device read the memory of `other`. Doing so again changes nothing.
    ///
    /// # Errors
    /// [`Error::ReachPeer`] without a way from one to the other, [`Error::CallDriver`] when the driver refuses.
    pub fn enable_peer(&self, other: &Self) -> Result<()> {
        match (&*self.backend, &*other.backend) {
            #[cfg(feature = "cuda")]
            (Backend::Cuda(here), Backend::Cuda(there)) => there.open_to(here),
            #[cfg(feature = "fibers")]
            (Backend::Fibers(_), Backend::Fibers(_)) => Ok(()),
            #[cfg(all(feature = "cuda", feature = "fibers"))]
            _ => Err(Error::no_device("a GPU and fibers share no memory")),
        }
    }

    /// Behind everything that was given to the device so far.
    pub(crate) fn mark(&self) -> Result<Mark> {
        match &*self.backend {
            #[cfg(feature = "cuda")]
            Backend::Cuda(context) => {
                let event = context.stream.record_event(None).map_err(failed("record an event"))?;
                Ok(Mark { event: Some(event) })
            }
            #[cfg(feature = "fibers")]
            Backend::Fibers(_) => Ok(Mark::default()),
        }
    }

    /// Lets all that is given to this device from now on wait for `mark`, of whatever device; nobody else waits.
    pub(crate) fn wait_for(&self, mark: &Mark) -> Result<()> {
        match &*self.backend {
            #[cfg(feature = "cuda")]
            Backend::Cuda(context) => match &mark.event {
                Some(event) => context.stream.wait(event).map_err(failed("wait for an event")),
                None => Ok(()),
            },
            #[cfg(feature = "fibers")]
            Backend::Fibers(_) => {
                let _ = mark;
                Ok(())
            }
        }
    }
}

/// A place in the order of a device's work. Fibers are done when they are called.
#[derive(Default)]
pub(crate) struct Mark {
    #[cfg(feature = "cuda")]
    event: Option<cudarc::driver::CudaEvent>,
}

#[cfg(feature = "cuda")]
impl Mark {
    /// For streams to wait for.
    pub(crate) fn event(&self) -> Option<&cudarc::driver::CudaEvent> {
        self.event.as_ref()
    }
}
