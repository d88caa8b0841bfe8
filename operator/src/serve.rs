//! What probes of the operator's pod are told.

use std::sync::Arc;

use hypic_wire::probes::Probed;

use crate::metrics::Metrics;

/// Answers of `/readyz` and `/metrics`. A replica that waits for the Lease is ready to take over; one that found old
/// definitions never came this far.
pub struct Probes {
    /// The operator's metrics.
    pub metrics: Arc<Metrics>,
}

impl Probed for Probes {
    fn ready(&self) -> Result<(), String> {
        Ok(())
    }

    fn metrics(&self) -> String {
        self.metrics.text()
    }
}
