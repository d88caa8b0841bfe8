//! One step: packed rows through the model, layer by layer.

use hypic_domain::logits::{Logits, Need};
use hypic_domain::model::ModelSpec;
use hypic_kernels::op::{Device, OpError};
use hypic_kernels::plan::{Plan, Run};
use hypic_models::model::{Memory as ModelMemory, Model};

use super::memory::Memory;

/// Rows on their way through the model. It can stop between two layers and go on later.
pub(super) struct Step<D: Device> {
    pub(super) plan: Plan<D>,
    x: Option<D::Tensor>,
    layer: usize,
}

impl<D: Device> Step<D> {
    /// Nobody takes part yet.
    pub(super) fn new() -> Self {
        Self { plan: Plan { ids: Vec::new(), runs: Vec::new() }, x: None, layer: 0 }
    }

    /// Rows so far: the place of the next run's first row.
    pub(super) fn rows(&self) -> usize {
        self.plan.ids.len()
    }

    /// Lets a run take part.
    pub(super) fn push(&mut self, ids: &[u32], run: Run<D>) {
        self.plan.ids.extend_from_slice(ids);
        self.plan.runs.push(run);
    }

    /// The next layer.
    pub(super) fn layer(&self) -> usize {
        self.layer
    }

    /// Whether every layer is computed.
    pub(super) fn is_done(&self, spec: &ModelSpec) -> bool {
        self.layer == spec.layers.len()
    }

    /// Computes the next layer.
    ///
    /// # Errors
    /// What the device says; the step is lost then.
    pub(super) fn advance(
        &mut self,
        device: &D,
        model: &dyn Model<D>,
        memory: &mut Memory<D>,
    ) -> Result<(), OpError> {
        let x = match self.x.take() {
            Some(x) => x,
            None => model.embed(device, &self.plan)?,
        };
        let memory = ModelMemory { states: &mut memory.states, pages: &mut memory.pages };
        self.x = Some(model.layer(device, self.layer, &self.plan, memory, x)?);
        self.layer += 1;
        Ok(())
    }

    /// Computes all layers at once.
    ///
    /// # Errors
    /// What the device says; the step is lost then.
    pub(super) fn finish(
        &mut self,
        device: &D,
        model: &dyn Model<D>,
        memory: &mut Memory<D>,
    ) -> Result<(), OpError> {
        let memory = ModelMemory { states: &mut memory.states, pages: &mut memory.pages };
        self.x = Some(model.step(device, &self.plan, memory)?);
        self.layer = model.spec().layers.len();
        Ok(())
    }

    /// What is needed of the logits of each row of `rows`.
    ///
    /// # Errors
    /// What the device says.
    pub(super) fn logits(
        &self,
        device: &D,
        model: &dyn Model<D>,
        rows: &[(usize, Need)],
    ) -> Result<Vec<Logits>, OpError> {
        match &self.x {
            Some(x) if !rows.is_empty() => model.logits(device, x, rows),
            _ => Ok(Vec::new()),
        }
    }
}
