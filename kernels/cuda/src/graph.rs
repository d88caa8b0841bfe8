use std::sync::atomic::Ordering;

#[cfg(feature = "cuda")]
use cudarc::driver::sys::{CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode};

use crate::arena::always;
use crate::device::Backend;
#[cfg(feature = "fibers")]
use crate::sys::Tape;
#[cfg(feature = "cuda")]
use crate::sys::{RecordedGraph, failed};
use crate::{Device, Error, Result};

/// Launches recorded once and replayed as one. The buffers they use must outlive it, at the same places.
pub struct Graph {
    recorded: Recorded,
    device: Device,
}

enum Recorded {
    #[cfg(feature = "cuda")]
    Cuda(RecordedGraph),
    #[cfg(feature = "fibers")]
    Fibers(Tape),
}

impl Graph {
    /// Records what `launches` gives to the device, without running it.
    ///
    /// # Errors
    /// What `launches` says, and [`Error::CallDriver`] when the driver cannot record it.
    pub fn record(device: &Device, launches: impl FnOnce() -> Result<()>) -> Result<Self> {
        let record = || {
            let is_recording = &device.now().is_recording;
            is_recording.store(true, Ordering::Relaxed);
            always(launches, || is_recording.store(false, Ordering::Relaxed))
        };
        let recorded = match &*device.backend {
            #[cfg(feature = "cuda")]
            Backend::Cuda(context) => {
                let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
                context.stream.begin_capture(mode).map_err(failed("begin a recording"))?;
                let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
                let mut graph = None;
                let recorded = always(record, || graph = Some(context.stream.end_capture(flags)));
                let graph = graph.transpose().map_err(failed("end a recording"))?.flatten();
                recorded?;
                Recorded::Cuda(RecordedGraph(graph.ok_or_else(|| Error::no_device("nothing was recorded"))?))
            }
            #[cfg(feature = "fibers")]
            Backend::Fibers(fibers) => {
                fibers.begin_tape();
                let mut tape = Tape::default();
                always(record, || tape = fibers.end_tape())?;
                Recorded::Fibers(tape)
            }
        };
        Ok(Self { recorded, device: device.clone() })
    }

    /// Runs the recording once.
    ///
    /// # Errors
    /// [`Error::CallDriver`] when it cannot be run, [`Error::RunFibers`] what a kernel did wrong.
    pub(crate) fn run(&mut self) -> Result<()> {
        match (&self.recorded, &*self.device.backend) {
            #[cfg(feature = "cuda")]
            (Recorded::Cuda(graph), _) => graph.0.launch().map_err(failed("launch a graph")),
            #[cfg(feature = "fibers")]
            (Recorded::Fibers(tape), Backend::Fibers(fibers)) => fibers.play(tape),
            #[cfg(all(feature = "cuda", feature = "fibers"))]
            (Recorded::Fibers(_), Backend::Cuda(_)) => {
                Err(Error::no_device("a recording of fibers runs on fibers"))
            }
        }
    }

    /// Runs the recording once and returns how long the device took, in milliseconds.
    ///
    /// # Errors
    /// [`Error::CallDriver`] when it cannot be run, [`Error::NoDevice`] on fibers, which have no clock.
    pub fn time_ms(&self) -> Result<f64> {
        match (&self.recorded, &*self.device.backend) {
            #[cfg(feature = "cuda")]
            (Recorded::Cuda(graph), Backend::Cuda(context)) => {
                let flags = Some(CUevent_flags::CU_EVENT_DEFAULT);
                let start = context.stream.record_event(flags).map_err(failed("record an event"))?;
                graph.0.launch().map_err(failed("launch a graph"))?;
                let end = context.stream.record_event(flags).map_err(failed("record an event"))?;
                start.elapsed_ms(&end).map(f64::from).map_err(failed("time a graph"))
            }
            #[cfg(feature = "fibers")]
            _ => Err(Error::no_device("fibers have no clock")),
        }
    }
}

#[cfg(all(test, feature = "fibers"))]
#[allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::{Buffer, Fresh, Order};

    #[test]
    fn what_is_recorded_runs_when_it_is_told_to_and_as_often() {
        let device = Device::fibers(Order::Forward);
        let one = Buffer::from_slice(&device, &[1.0_f32; 8]).unwrap();
        let mut sum = Buffer::zeros(&device, 8).unwrap();
        let mut graph = Graph::record(&device, || {
            // Given up before it runs.
            let mut passing = Buffer::fresh(&device, 8, Fresh::Poison)?;
            passing.copy(0, &one, 0, 8)?;
            crate::add_rows(&device, &mut sum, &passing)
        })
        .unwrap();
        assert_eq!(sum.read().unwrap(), [0.0; 8]);
        for times in [1.0, 2.0] {
            graph.run().unwrap();
            assert_eq!(sum.read().unwrap(), [times; 8]);
        }
    }

    #[test]
    fn what_the_host_sends_and_reads_is_not_recorded() {
        let device = Device::fibers(Order::Forward);
        let mut buffer = Buffer::<u32>::zeros(&device, 4).unwrap();
        let sent = device.in_arena(true, || Graph::record(&device, || buffer.write(&[1; 4])));
        assert!(matches!(sent, Err(Error::Record { .. })));
        let read = Graph::record(&device, || buffer.read().map(drop));
        assert!(matches!(read, Err(Error::Record { .. })));
        buffer.write(&[2; 4]).unwrap();
        assert_eq!(buffer.read().unwrap(), [2; 4]);
    }

    #[test]
    fn a_panic_in_a_recording_ends_it() {
        let device = Device::fibers(Order::Forward);
        let mut buffer = Buffer::<u32>::zeros(&device, 4).unwrap();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            device.in_arena(true, || Graph::record(&device, || panic!("a layer's")))
        }));
        assert!(panicked.is_err());
        buffer.write(&[2; 4]).unwrap();
        assert_eq!(buffer.read().unwrap(), [2; 4]);
        assert!(!device.now().is_step());
    }
}
