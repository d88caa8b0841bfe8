//! A checkpoint's folder onto a device.

use std::path::Path;

use hypic_domain::id::ModelId;
use hypic_domain::model::ModelSpec;
use hypic_kernels::op::Device;

use crate::checkpoint::{Checkpoint, read_json};
use crate::config::Config;
use crate::error::LoadError;
use crate::model::Model;
use crate::qwen3_next::Qwen3Next;
use crate::tensors::Tensors;
use crate::weights::Weights;

/// A model on a device, and what makes its identity.
pub struct Loaded<D: Device> {
    /// The model.
    pub model: Box<dyn Model<D>>,
    /// Its sizes.
    pub spec: ModelSpec,
    /// Digest of the weights: names, shapes, formats and bytes.
    pub weights: [u8; 32],
    /// Everything of the architecture that changes a result, and how the device multiplies codes, in one line.
    pub architecture: String,
    /// Bytes that all weights take on the device: the engine's first cost.
    pub bytes: u64,
}

/// Loads the checkpoint in `dir`. Tensors are read one after the other: beside what the device keeps, at most one
/// of them is in memory.
///
/// # Errors
/// Names the file and the tensor or the config's key.
pub fn load<D: Device>(dir: &Path, device: &D, id: ModelId) -> Result<Loaded<D>, LoadError> {
    let config = Config::parse(&read_json(&dir.join("config.json"))?, id)?;
    load_from(Box::new(Checkpoint::open(dir, config.blocks)?), config, device)
}

pub(crate) fn load_from<D: Device>(
    tensors: Box<dyn Tensors>,
    config: Config,
    device: &D,
) -> Result<Loaded<D>, LoadError> {
    device.fits(&config.spec).map_err(|source| LoadError::FitDevice { source })?;
    let mut weights = Weights::new(device, tensors);
    let model = Qwen3Next::load(&config, &mut weights)?;
    let mut architecture = config.canonical();
    if config.blocks.is_some() && device.keeps_codes() {
        // Products of codes, whose factors act on sums, are not those of rounded values.
        architecture += ";products=codes";
    }
    Ok(Loaded {
        model: Box::new(model),
        weights: weights.digest(),
        architecture,
        bytes: weights.bytes(),
        spec: config.spec,
    })
}
