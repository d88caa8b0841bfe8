//! Tensors drawn when they are asked for.

use std::collections::HashMap;

use half::bf16;
use hypic_domain::tuple::Dtype;

use super::{Draw, RandomSpec};
use crate::error::LoadError;
use crate::load::Tensors;
use crate::stored::Stored;

/// Values of a block.
const BLOCK: usize = 1 << 22;

/// Draws vectors one by one, and matrices from one block of bf16 for each width.
pub(super) struct Drawn {
    draw: Draw,
    half_lives: (f64, f64),
    blocks: HashMap<usize, Vec<u8>>,
}

impl Drawn {
    pub(super) fn new(spec: &RandomSpec) -> Self {
        let draw = Draw { random: spec.seed, tensors: Vec::new(), half_precision: false };
        Self { draw, half_lives: spec.half_lives, blocks: HashMap::new() }
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

    /// `len` values of variance `1 / width`.
    fn matrix(&mut self, len: usize, width: usize) -> Vec<u8> {
        let draw = &mut self.draw;
        let scale = (width as f64).sqrt().recip();
        let value = |_| bf16::from_f64(scale * draw.normal()).to_le_bytes();
        let block = self.blocks.entry(width).or_insert_with(|| (0..BLOCK).flat_map(value).collect());
        // Tensors begin at different places of the block, or all layers would be one.
        let first = (self.draw.uniform() * BLOCK as f64) as usize % BLOCK * 2;
        let mut bytes = Vec::with_capacity(2 * len);
        bytes.extend_from_slice(&block[first..block.len().min(first + 2 * len)]);
        while bytes.len() < 2 * len {
            let rest = 2 * len - bytes.len();
            bytes.extend_from_slice(&block[..rest.min(block.len())]);
        }
        bytes
    }
}

impl Tensors for Drawn {
    fn has(&self, name: &str) -> bool {
        // As Qwen3.5 names them: the experts of a layer in one tensor.
        name.ends_with("gate_up_proj")
    }

    fn read(&mut self, name: &str, shape: &[usize]) -> Result<Stored, LoadError> {
        let len = shape.iter().product();
        let is_exact = shape.len() == 1 || name.ends_with("conv1d.weight");
        let (dtype, bytes) = if is_exact {
            let values = self.vector(name, len).into_iter();
            (Dtype::F32, values.flat_map(|value| (value as f32).to_le_bytes()).collect())
        } else {
            (Dtype::Bf16, self.matrix(len, shape.last().copied().unwrap_or(1)))
        };
        Ok(Stored { name: name.to_owned(), shape: shape.to_vec(), dtype, bytes })
    }

    fn digest(&self) -> [u8; 32] {
        [0; 32]
    }
}
