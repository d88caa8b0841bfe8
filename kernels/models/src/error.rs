//! Why a checkpoint could not be loaded.

use std::path::PathBuf;

use hypic_kernels::op::OpError;

/// Why a checkpoint could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file could not be read.
    #[error("can't read \"{}\"", path.display())]
    ReadFile {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A file could not be written.
    #[error("can't write \"{}\"", path.display())]
    WriteFile {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A JSON file is not what it should be.
    #[error("can't parse \"{}\"", path.display())]
    ParseJson {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: serde_json::Error,
    },
    /// A safetensors header makes no sense.
    #[error("the header of \"{}\" is refused: {reason}", path.display())]
    ParseHeader {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A file name leads out of the checkpoint, or to something that is no plain file.
    #[error("the entry \"{entry}\" of the checkpoint is refused: {reason}")]
    OpenShard {
        /// The name as the index has it.
        entry: String,
        /// What is wrong.
        reason: String,
    },
    /// A key of the config is missing, of the wrong type, or out of range.
    #[error("config key \"{key}\": {reason}")]
    ReadKey {
        /// The key.
        key: String,
        /// What is wrong.
        reason: String,
    },
    /// The config asks for something that is not built.
    #[error("{what} is not supported: {reason}")]
    ChooseModel {
        /// What.
        what: String,
        /// Why, or what would be.
        reason: String,
    },
    /// A tensor is in no file.
    #[error("tensor \"{name}\" is in no file of \"{}\"", dir.display())]
    FindTensor {
        /// The tensor.
        name: String,
        /// The checkpoint.
        dir: PathBuf,
    },
    /// A tensor has another shape than the config says.
    #[error("tensor \"{name}\" of \"{}\" has shape {found:?}, the config says {expected:?}", path.display())]
    FitTensor {
        /// The tensor.
        name: String,
        /// Its file.
        path: PathBuf,
        /// By the config.
        expected: Vec<usize>,
        /// In the file.
        found: Vec<usize>,
    },
    /// A tensor has a number format that can't be read as weights.
    #[error("tensor \"{name}\" of \"{}\" is stored as {dtype}, without scales no weight", path.display())]
    ReadDtype {
        /// The tensor.
        name: String,
        /// Its file.
        path: PathBuf,
        /// The format.
        dtype: String,
    },
    /// A value is NaN or infinite.
    #[error("tensor \"{name}\" of \"{}\" has a value that is not finite at {index}", path.display())]
    CheckValues {
        /// The tensor.
        name: String,
        /// Its file.
        path: PathBuf,
        /// Place of the first such value.
        index: usize,
    },
    /// The device does not run models of this shape.
    #[error("the device does not run models of this shape")]
    FitDevice {
        /// The cause.
        source: OpError,
    },
    /// The device refused a weight.
    #[error("the device refuses \"{name}\"")]
    PlaceWeight {
        /// The tensor.
        name: String,
        /// The cause.
        source: OpError,
    },
}
