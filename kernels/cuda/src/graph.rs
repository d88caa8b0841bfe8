#[cfg(feature = "cuda")]
use std::sync::atomic::Ordering;

#[cfg(feature = "cuda")]
use cudarc::driver::sys::{CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode};

use crate::device::Backend;
#[cfg(feature = "cuda")]
use crate::sys::{RecordedGraph, failed};
use crate::{Device, Error, Result};

/// Launches recorded once and replayed as one. The buffers they use must outlive it, at the same places.
pub struct Graph {
    #[cfg(feature = "cuda")]
    graph: RecordedGraph,
    device: Device,
}

impl Graph {
    /// Records what `launches` gives to the device, without running it.
    ///
    /// # Errors
    /// [`Error::NoDevice`] on fibers, [`Error::CallDriver`] when the driver cannot record it.
    pub fn record(device: &Device, launches: impl FnOnce() -> Result<()>) -> Result<Self> {
        match &*device.backend {
            #[cfg(feature = "cuda")]
            Backend::Cuda(context) => {
                let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
                context.stream.begin_capture(mode).map_err(failed("begin a recording"))?;
                context.is_recording.store(true, Ordering::Relaxed);
                let recorded = launches();
                context.is_recording.store(false, Ordering::Relaxed);
                let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
                let graph = context.stream.end_capture(flags).map_err(failed("end a recording"))?;
                recorded?;
                let graph = graph.ok_or(Error::NoDevice)?;
                Ok(Self { graph: RecordedGraph(graph), device: device.clone() })
            }
            #[cfg(feature = "fibers")]
            Backend::Fibers(_) => {
                drop(launches);
                Err(Error::NoDevice)
            }
        }
    }

    /// Runs the recording once.
    ///
    /// # Errors
    /// [`Error::CallDriver`] when it cannot be run.
    pub(crate) fn run(&mut self) -> Result<()> {
        match &*self.device.backend {
            #[cfg(feature = "cuda")]
            Backend::Cuda(_) => self.graph.0.launch().map_err(failed("launch a graph")),
            #[cfg(feature = "fibers")]
            Backend::Fibers(_) => Err(Error::NoDevice),
        }
    }

    /// Runs the recording once and returns how long the device took, in milliseconds.
    ///
    /// # Errors
    /// [`Error::CallDriver`] when it cannot be run.
    pub fn time_ms(&self) -> Result<f64> {
        match &*self.device.backend {
            #[cfg(feature = "cuda")]
            Backend::Cuda(context) => {
                let flags = Some(CUevent_flags::CU_EVENT_DEFAULT);
                let start = context.stream.record_event(flags).map_err(failed("record an event"))?;
                self.graph.0.launch().map_err(failed("launch a graph"))?;
                let end = context.stream.record_event(flags).map_err(failed("record an event"))?;
                start.elapsed_ms(&end).map(f64::from).map_err(failed("time a graph"))
            }
            #[cfg(feature = "fibers")]
            Backend::Fibers(_) => Err(Error::NoDevice),
        }
    }
}

#[cfg(all(test, feature = "fibers"))]
mod tests {
    use super::*;
    use crate::Order;

    #[test]
    fn fibers_cannot_be_recorded() {
        let device = Device::fibers(Order::Forward);
        assert!(matches!(Graph::record(&device, || Ok(())), Err(Error::NoDevice)));
    }
}
