use std::error::Error as Source;

/// What can go wrong, named after the action.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No driver, no device of that number, or a build without the `cuda` feature.
    #[error("no CUDA device: {reason}")]
    NoDevice {
        /// What is missing.
        reason: String,
    },
    /// A call of the driver failed.
    #[error("the driver failed to {action}")]
    CallDriver {
        /// What was asked of the driver.
        action: &'static str,
        /// The driver's own error.
        source: Box<dyn Source + Send + Sync>,
    },
    /// A GPU cannot read the memory of another one.
    #[error("GPU {from} cannot read the memory of GPU {to}: there is no link between them")]
    ReachPeer {
        /// The one that would read.
        from: usize,
        /// The one whose memory it is.
        to: usize,
    },
    /// A kernel does not exist on this device.
    #[error("kernel '{kernel}' does not exist on this device")]
    FindKernel {
        /// Its name.
        kernel: String,
    },
    /// A kernel run as fibers did something a GPU would hang or race on.
    #[error("kernel '{kernel}' run as fibers: {fault}")]
    RunFibers {
        /// Its name.
        kernel: String,
        /// What it did.
        fault: String,
    },
    /// A library that the driver does not bring is not there.
    #[error(
        "{library} was not found: install the CUDA 13 runtime libraries, or name their folder in LD_LIBRARY_PATH"
    )]
    FindLibrary {
        /// Its file name.
        library: &'static str,
    },
    /// A step cannot be recorded.
    #[error("a step that is recorded needs {what}")]
    Record {
        /// What stands in the way.
        what: &'static str,
    },
    /// A buffer or a parameter does not fit the others.
    #[error("{what} must be {expected}, not {found}")]
    CheckShape {
        /// The buffer or parameter.
        what: &'static str,
        /// What would fit.
        expected: String,
        /// What was given.
        found: String,
    },
}

impl Error {
    /// An [`Error::NoDevice`].
    pub(crate) fn no_device(reason: impl Into<String>) -> Self {
        Self::NoDevice { reason: reason.into() }
    }

    /// A [`Error::CheckShape`] unless `holds`.
    pub(crate) fn unless(
        holds: bool,
        what: &'static str,
        expected: impl ToString,
        found: impl ToString,
    ) -> Result<(), Self> {
        if holds {
            return Ok(());
        }
        Err(Self::CheckShape { what, expected: expected.to_string(), found: found.to_string() })
    }
}
