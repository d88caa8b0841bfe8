//! What the engine sees of a model.

use hypic_domain::logits::{Logits, Need};
use hypic_domain::model::ModelSpec;
use hypic_kernels::op::{Device, OpError};
use hypic_kernels::plan::Plan;

/// A model on a device: layer by layer, so that the engine can stop between two layers and wait for parts
/// that are still on the wire.
pub trait Model<D: Device>: Send + Sync {
    /// Sizes and shapes.
    fn spec(&self) -> &ModelSpec;
    /// The first layer's input, `[rows, hidden]`.
    fn embed(&self, device: &D, plan: &Plan<D>) -> Result<D::Tensor, OpError>;
    /// One layer: its mixer and its feed-forward part.
    fn layer(
        &self,
        device: &D,
        layer: usize,
        plan: &Plan<D>,
        memory: Memory<'_, D>,
        x: D::Tensor,
    ) -> Result<D::Tensor, OpError>;
    /// All layers, from the ids of a step to its last rows.
    fn step(&self, device: &D, plan: &Plan<D>, memory: Memory<'_, D>) -> Result<D::Tensor, OpError> {
        device.step(plan, memory.states, memory.pages, &mut |states, pages| {
            let mut x = self.embed(device, plan)?;
            for layer in 0..self.spec().layers.len() {
                let memory = Memory { states: &mut *states, pages: &mut *pages };
                x = self.layer(device, layer, plan, memory, x)?;
            }
            Ok(x)
        })
    }
    /// What is needed of the logits of each row of `rows`, fp32 on the host.
    fn logits(&self, device: &D, x: &D::Tensor, rows: &[(usize, Need)]) -> Result<Vec<Logits>, OpError>;

    /// All logits of the rows at `rows`, `[rows.len(), vocab]`.
    fn all_logits(&self, device: &D, x: &D::Tensor, rows: &[usize]) -> Result<Vec<f32>, OpError> {
        let rows: Vec<_> = rows.iter().map(|row| (*row, Need::all())).collect();
        Ok(self.logits(device, x, &rows)?.into_iter().filter_map(Logits::into_all).flatten().collect())
    }
}

/// The pools that a layer reads and writes.
pub struct Memory<'a, D: Device> {
    /// State slots.
    pub states: &'a mut D::States,
    /// KV pages.
    pub pages: &'a mut D::Pages,
}
