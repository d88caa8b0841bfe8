//! Why an op could not be done.

/// Why an op could not be done.
#[derive(Debug, thiserror::Error)]
pub enum OpError {
    /// Shapes do not fit.
    #[error("{op}: expected {expected}, found {found}")]
    Shape {
        /// The op.
        op: &'static str,
        /// What it wants.
        expected: String,
        /// What it got.
        found: String,
    },
    /// The device has no such op for this family, dtype or shape.
    #[error("{op} is not available for {what} on this device")]
    Unsupported {
        /// The op.
        op: &'static str,
        /// What was asked of it.
        what: String,
    },
    /// A body's layer was used before it arrived.
    #[error("layer {layer} of a cached body has not arrived")]
    NotArrived {
        /// The layer.
        layer: usize,
    },
    /// A value to be stored is NaN or infinite.
    #[error("{op}: a value of {what} is not finite")]
    NotFinite {
        /// The op.
        op: &'static str,
        /// What it is part of.
        what: String,
    },
    /// No memory for it.
    #[error("{what} needs {needed} bytes and the device has {free}")]
    OutOfMemory {
        /// What was to be allocated.
        what: String,
        /// Bytes asked for.
        needed: u64,
        /// Bytes there.
        free: u64,
    },
    /// The device failed: a call of its driver, or a kernel.
    #[error("the device failed in {op}")]
    Device {
        /// The op.
        op: &'static str,
        /// What the device says.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// There is no such device in this process or on this machine.
    #[error("no device: {reason}")]
    NoDevice {
        /// Why.
        reason: String,
    },
}

impl OpError {
    /// Something does not fit.
    pub fn shape(op: &'static str, expected: impl std::fmt::Display, found: impl std::fmt::Display) -> Self {
        Self::Shape { op, expected: expected.to_string(), found: found.to_string() }
    }
}
