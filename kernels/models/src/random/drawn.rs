//! Tensors drawn when they are asked for.

use hypic_domain::tuple::Dtype;
use hypic_kernels::random::RandomMatrix;

use super::{Draw, RandomSpec, is_coded};
use crate::error::LoadError;
use crate::stored::{Stored, Values};
use crate::tensors::Tensors;

/// Draws vectors on the host; of a matrix it says what to draw.
pub(super) struct Drawn {
    draw: Draw,
    half_lives: (f64, f64),
}

impl Drawn {
    pub(super) fn new(spec: &RandomSpec) -> Self {
        Self { draw: Draw::new(spec), half_lives: spec.half_lives }
    }

    /// Vectors and taps, which stay exact.
    fn vector(&mut self, name: &str, len: usize) -> Vec<f64> {
        let draw = &mut self.draw;
        if name.ends_with("A_log") {
            draw.a_log(len, self.half_lives)
        } else if name.ends_with("dt_bias") {
            vec![Draw::dt_bias(); len]
        } else if name.ends_with("conv1d.weight") {
            (0..len).map(|_| 0.5 * draw.normal()).collect()
        } else {
            let centre = if name.ends_with("linear_attn.norm.weight") { 1.0 } else { 0.0 };
            (0..len).map(|_| centre + 0.1 * draw.normal()).collect()
        }
    }
}

impl Tensors for Drawn {
    fn has(&self, name: &str) -> bool {
        // As Qwen3.5 names them: the experts of a layer in one tensor.
        name.ends_with("gate_up_proj")
    }

    fn read(&mut self, name: &str, shape: &[usize]) -> Result<Stored, LoadError> {
        let values: Vec<f32> = match self.random(name, shape) {
            Some(matrix) => matrix.values().collect(),
            None => self.vector(name, shape.iter().product()).into_iter().map(|value| value as f32).collect(),
        };
        let bytes = values.into_iter().flat_map(f32::to_le_bytes).collect();
        let values = Values::Plain { dtype: Dtype::F32, bytes };
        Ok(Stored { name: name.to_owned(), shape: shape.to_vec(), values })
    }

    /// Variance `1 / in`, so that activations keep their size; gates of linear layers a quarter of it.
    fn random(&mut self, name: &str, shape: &[usize]) -> Option<RandomMatrix> {
        if shape.len() == 1 || name.ends_with("conv1d.weight") {
            return None;
        }
        let width = shape.last().copied().unwrap_or(1);
        let is_gate = name.ends_with("in_proj_a.weight") || name.ends_with("in_proj_b.weight");
        let scale = if is_gate { 0.5 } else { 1.0 } / (width as f32).sqrt();
        let outer = shape.iter().product::<usize>() / width.max(1);
        Some(RandomMatrix { seed: self.draw.next(), shape: [outer, width], scale, stride: width })
    }

    fn is_coded(&self, name: &str) -> bool {
        self.draw.blocks.is_some() && is_coded(name)
    }

    fn digest(&self) -> [u8; 32] {
        [0; 32]
    }
}
