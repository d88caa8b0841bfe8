//! Memory of steps that are recorded and run again, and what must not happen while one is recorded.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::{Error, Result};

/// Larger memory is rounded up to a multiple of this, smaller to a power of two.
pub(crate) const SMALL: usize = 1 << 20;

/// Bytes to ask for where `size` are needed and at most [`SMALL`]: so that there are few sizes.
pub(crate) fn rounded_small(size: usize) -> usize {
    size.next_power_of_two().max(512)
}

/// What the work that a device is given now is part of.
#[derive(Default)]
pub(crate) struct Now {
    /// A step that is or may be recorded: its memory comes from the arena.
    pub(crate) is_step: AtomicBool,
    /// A recording: nothing runs yet.
    pub(crate) is_recording: AtomicBool,
    /// Weights and pools that are gone: what was recorded before may name their places.
    pub(crate) gone: AtomicU64,
}

impl Now {
    pub(crate) fn is_step(&self) -> bool {
        self.is_step.load(Ordering::Relaxed)
    }

    pub(crate) fn is_recording(&self) -> bool {
        self.is_recording.load(Ordering::Relaxed)
    }

    /// An error while a step is recorded: what is copied from the host then would be copied again from where it lay.
    pub(crate) fn check_upload(&self) -> Result<()> {
        let is_recorded = self.is_step() && self.is_recording();
        if is_recorded { Err(Error::Record { what: "a copy from the host" }) } else { Ok(()) }
    }

    /// An error while anything is recorded: nothing has been computed yet.
    pub(crate) fn check_landing(&self) -> Result<()> {
        if self.is_recording() { Err(Error::Record { what: "a copy to the host" }) } else { Ok(()) }
    }
}

/// Does `work` and then `after`, even where `work` panics: whoever holds the device next finds it as it was.
pub(crate) fn always<R>(work: impl FnOnce() -> R, after: impl FnOnce()) -> R {
    let result = catch_unwind(AssertUnwindSafe(work));
    after();
    result.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Memory of the steps that are recorded: what they use lies at the same place when they are done again. It stays there.
pub(crate) struct Arena<M>(Mutex<HashMap<usize, Vec<M>>>);

impl<M> Default for Arena<M> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

/// Memory, and where it goes back to.
pub(crate) struct Memory<M> {
    pub(crate) block: M,
    /// Bytes that the arena was asked for, if it is of the arena.
    of_arena: Option<usize>,
}

impl<M> Memory<M> {
    /// To be given back to all.
    pub(crate) fn shared(block: M) -> Self {
        Self { block, of_arena: None }
    }
}

impl<M> Arena<M> {
    /// At least `size` bytes of whatever is there; where there is none, what `fresh` makes.
    pub(crate) fn take(
        &self,
        now: &Now,
        size: usize,
        fresh: impl FnOnce(usize) -> Result<M>,
    ) -> Result<Memory<M>> {
        let size = if size <= SMALL { rounded_small(size) } else { size.next_multiple_of(SMALL) };
        // A panic while it was held leaves it whole, here and below.
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&size).and_then(Vec::pop);
        let block = match kept {
            Some(block) => block,
            None if now.is_recording() => {
                return Err(Error::Record { what: "memory that its first run did not need" });
            }
            None => fresh(size)?,
        };
        Ok(Memory { block, of_arena: Some(size) })
    }

    /// Takes back what is its own; all else is the caller's.
    pub(crate) fn put(&self, Memory { block, of_arena }: Memory<M>) -> Option<M> {
        let Some(size) = of_arena else { return Some(block) };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(size).or_default().push(block);
        None
    }
}
