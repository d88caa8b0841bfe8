//! The stream of copies to a GPU, beside that of its kernels.

use std::collections::VecDeque;
use std::sync::Arc;

use cudarc::driver::{CudaEvent, CudaStream};

use crate::Result;
use crate::device::Kept;
use crate::sys::failed;

/// Copies that were given to the stream, numbered from 1 in their order.
pub(crate) struct Copies {
    pub(crate) stream: Arc<CudaStream>,
    /// The last ones, up to number `last`; those before are done.
    sent: VecDeque<Sent>,
    last: u64,
    /// The stream of kernels waits for all up to this one.
    awaited: u64,
}

struct Sent {
    done: CudaEvent,
    /// What is read until then.
    _kept: Kept,
}

impl Copies {
    pub(crate) fn new(stream: Arc<CudaStream>) -> Self {
        Self { stream, sent: VecDeque::new(), last: 0, awaited: 0 }
    }

    /// Ends a group of copies out of what `kept` owns, which stays until it is done. Returns its number.
    pub(crate) fn end(&mut self, kept: Kept) -> Result<u64> {
        self.forget_done();
        let done = self.stream.record_event(None).map_err(failed("record an event"))?;
        self.sent.push_back(Sent { done, _kept: kept });
        self.last += 1;
        Ok(self.last)
    }

    /// Lets whatever is given to `kernels` from now on wait for the copies up to `number`.
    pub(crate) fn wait_on(&mut self, kernels: &CudaStream, number: u64) -> Result<()> {
        if number <= self.awaited {
            return Ok(());
        }
        let first = self.last + 1 - self.sent.len() as u64;
        let sent = number.checked_sub(first).and_then(|place| self.sent.get(place as usize));
        if let Some(sent) = sent {
            kernels.wait(&sent.done).map_err(failed("wait for a copy"))?;
        }
        self.awaited = number;
        Ok(())
    }

    /// Lets go of what was read by copies that are done.
    pub(crate) fn forget_done(&mut self) {
        while self.sent.front().is_some_and(|sent| sent.done.is_complete()) {
            self.sent.pop_front();
        }
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        // What is read goes only when it was. Of a device that fails nothing is copied any more.
        let _ = self.stream.synchronize();
    }
}
