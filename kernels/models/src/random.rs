//! Random checkpoints for tests and benches, with slow decays: half lives log-uniform from 8 to 8192 tokens.
//!
//! What a library draws by default forgets within tens of tokens; `T` is then nothing, and every fault of
//! composition is hidden.

mod drawn;

use std::collections::HashMap;
use std::path::Path;

use half::bf16;
use hypic_domain::id::ModelId;
use hypic_kernels::coded::{Blocks, encode};
use hypic_kernels::op::Device;
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::json;

use crate::config::{Config, Naming};
use crate::error::LoadError;
use crate::load::{Loaded, load_from};
use drawn::Drawn;

/// What to draw.
#[derive(Clone, Debug)]
pub struct RandomSpec {
    /// Same seed, same bytes.
    pub seed: u64,
    /// How projections are stored.
    pub naming: Naming,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the feed-forward part, of an expert's where there are experts.
    pub intermediate: usize,
    /// Experts of every layer and how many a row chooses, beside one that every row has; none for dense layers.
    pub experts: Option<(usize, usize)>,
    /// Size of the vocabulary.
    pub vocab: usize,
    /// Layers.
    pub layers: usize,
    /// Every so many layers one is full attention.
    pub full_interval: usize,
    /// Heads of linear layers' keys, and value heads.
    pub linear_heads: (usize, usize),
    /// Width of linear layers' keys and values: a multiple of 16.
    pub linear_width: usize,
    /// Query heads and key heads of full layers.
    pub full_heads: (usize, usize),
    /// Width of full layers' heads: a multiple of 16; a quarter of it is rotated.
    pub full_width: usize,
    /// Longest prompt and answer.
    pub context: usize,
    /// Shortest and longest half life of a head, in tokens.
    pub half_lives: (f64, f64),
    /// Whether the head is the embedding table.
    pub tied: bool,
    /// bf16 instead of fp32.
    pub half_precision: bool,
    /// Blocks in which matrices of products are stored as 8-bit floats: projections and experts, as in Qwen's checkpoints.
    pub blocks: Option<Blocks>,
}

impl Default for RandomSpec {
    /// A small model for tests: four layers, the last one full attention.
    fn default() -> Self {
        Self {
            seed: 1,
            naming: Naming::Qwen3Next,
            hidden: 64,
            intermediate: 96,
            experts: None,
            vocab: 256,
            layers: 4,
            full_interval: 4,
            linear_heads: (2, 4),
            linear_width: 16,
            full_heads: (4, 2),
            full_width: 32,
            context: 4096,
            half_lives: (8.0, 8192.0),
            tied: false,
            half_precision: false,
            blocks: None,
        }
    }
}

/// Writes a checkpoint into `dir`, which must exist: `config.json` and `model.safetensors`.
///
/// # Errors
/// [`LoadError::WriteFile`].
pub fn write(dir: &Path, spec: &RandomSpec) -> Result<(), LoadError> {
    let config = dir.join("config.json");
    let text = format!("{:#}\n", config_of(spec));
    std::fs::write(&config, text).map_err(|source| LoadError::WriteFile { path: config, source })?;
    let mut draw = Draw::new(spec);
    draw.model(spec);
    let path = dir.join("model.safetensors");
    let failed = |error: safetensors::SafeTensorError| LoadError::WriteFile {
        path: path.clone(),
        source: std::io::Error::other(error),
    };
    let mut views = Vec::with_capacity(draw.tensors.len());
    for (name, dtype, shape, bytes) in &draw.tensors {
        views.push((name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).map_err(failed)?));
    }
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    serialize_to_file(views, Some(metadata), &path).map_err(failed)
}

/// [`write()`], with the tokenizer of another checkpoint beside it. `spec.vocab` must hold its ids.
///
/// # Errors
/// [`LoadError::WriteFile`], with the file that could not be copied.
pub fn write_with_tokenizer(dir: &Path, spec: &RandomSpec, tokenizer: &Path) -> Result<(), LoadError> {
    write(dir, spec)?;
    for file in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        let path = dir.join(file);
        std::fs::copy(tokenizer.join(file), &path).map_err(|source| LoadError::WriteFile { path, source })?;
    }
    Ok(())
}

/// A random model straight onto a device, without a checkpoint: for sizes that no drive should see. The device makes
/// its matrices where they lie, as far as it stores them as they are named.
///
/// # Errors
/// Those of the device.
pub fn load<D: Device>(device: &D, spec: &RandomSpec) -> Result<Loaded<D>, LoadError> {
    load_from(Box::new(Drawn::new(spec)), Config::parse(&config_of(spec), ModelId::from("random"))?, device)
}

fn config_of(spec: &RandomSpec) -> serde_json::Value {
    let (model_type, class) = match (spec.naming, spec.experts) {
        (Naming::Qwen3Next, _) => ("qwen3_next", "Qwen3NextForCausalLM"),
        (Naming::Qwen35, None) => ("qwen3_5_text", "Qwen3_5ForCausalLM"),
        (Naming::Qwen35, Some(_)) => ("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM"),
    };
    let (experts, chosen) = spec.experts.unwrap_or((0, 1));
    let dense = if experts == 0 { spec.layers } else { 0 };
    let kind = |layer: usize| match (layer + 1).is_multiple_of(spec.full_interval) {
        true => "full_attention",
        false => "linear_attention",
    };
    json!({
        "architectures": [class],
        "model_type": model_type,
        "dtype": if spec.half_precision { "bfloat16" } else { "float32" },
        "hidden_act": "silu",
        "attention_bias": false,
        "hidden_size": spec.hidden,
        "intermediate_size": spec.intermediate,
        "vocab_size": spec.vocab,
        "num_hidden_layers": spec.layers,
        "layer_types": (0..spec.layers).map(kind).collect::<Vec<_>>(),
        "linear_num_key_heads": spec.linear_heads.0,
        "linear_num_value_heads": spec.linear_heads.1,
        "linear_key_head_dim": spec.linear_width,
        "linear_value_head_dim": spec.linear_width,
        "linear_conv_kernel_dim": 4,
        "num_attention_heads": spec.full_heads.0,
        "num_key_value_heads": spec.full_heads.1,
        "head_dim": spec.full_width,
        "max_position_embeddings": spec.context,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        "tie_word_embeddings": spec.tied,
        "num_experts": experts,
        "num_experts_per_tok": chosen,
        "norm_topk_prob": true,
        "moe_intermediate_size": spec.intermediate,
        "shared_expert_intermediate_size": spec.intermediate,
        "mlp_only_layers": (0..dense).collect::<Vec<_>>(),
        "quantization_config": spec.blocks.map(|blocks| json!({
            "quant_method": "fp8",
            "fmt": "e4m3",
            "weight_block_size": [blocks.rows, blocks.columns],
        })),
        "bos_token_id": null,
        "eos_token_id": null,
    })
}

struct Draw {
    random: u64,
    tensors: Vec<(String, Dtype, Vec<usize>, Vec<u8>)>,
    half_precision: bool,
    blocks: Option<Blocks>,
}

/// Whether a tensor is a matrix of products, or a stack of them, that is stored as codes where some are.
fn is_coded(name: &str) -> bool {
    name.contains("_proj") && !name.contains("in_proj_a") && !name.contains("in_proj_b")
}

impl Draw {
    fn new(spec: &RandomSpec) -> Self {
        let RandomSpec { seed: random, half_precision, blocks, .. } = *spec;
        Self { random, tensors: Vec::new(), half_precision, blocks }
    }

    fn model(&mut self, spec: &RandomSpec) {
        let RandomSpec { hidden, intermediate, vocab, .. } = *spec;
        self.matrix("model.embed_tokens.weight", &[vocab, hidden], 1.0);
        for layer in 0..spec.layers {
            let name = |part: &str| format!("model.layers.{layer}.{part}");
            self.norm(&name("input_layernorm.weight"), hidden, 0.0);
            if (layer + 1).is_multiple_of(spec.full_interval) {
                self.full(&name("self_attn"), spec);
            } else {
                self.linear(&name("linear_attn"), spec);
            }
            self.norm(&name("post_attention_layernorm.weight"), hidden, 0.0);
            match spec.experts {
                None => self.dense(&name("mlp"), hidden, intermediate),
                Some((experts, _)) => self.mixture(&name("mlp"), experts, spec),
            }
        }
        self.norm("model.norm.weight", hidden, 0.0);
        if !spec.tied {
            self.matrix("lm_head.weight", &[vocab, hidden], 1.0);
        }
    }

    fn dense(&mut self, name: &str, hidden: usize, width: usize) {
        self.matrix(&format!("{name}.gate_proj.weight"), &[width, hidden], 1.0);
        self.matrix(&format!("{name}.up_proj.weight"), &[width, hidden], 1.0);
        self.matrix(&format!("{name}.down_proj.weight"), &[hidden, width], 1.0);
    }

    fn mixture(&mut self, name: &str, experts: usize, spec: &RandomSpec) {
        let (hidden, width) = (spec.hidden, spec.intermediate);
        self.matrix(&format!("{name}.gate.weight"), &[experts, hidden], 1.0);
        match spec.naming {
            Naming::Qwen3Next => {
                for expert in 0..experts {
                    self.dense(&format!("{name}.experts.{expert}"), hidden, width);
                }
            }
            Naming::Qwen35 => {
                self.stack(&format!("{name}.experts.gate_up_proj"), [experts, 2 * width, hidden]);
                self.stack(&format!("{name}.experts.down_proj"), [experts, hidden, width]);
            }
        }
        self.dense(&format!("{name}.shared_expert"), hidden, width);
        self.matrix(&format!("{name}.shared_expert_gate.weight"), &[1, hidden], 1.0);
    }

    fn linear(&mut self, name: &str, spec: &RandomSpec) {
        let ((key_heads, heads), width, hidden) = (spec.linear_heads, spec.linear_width, spec.hidden);
        let (keys, values) = (key_heads * width, heads * width);
        let channels = 2 * keys + values;
        match spec.naming {
            Naming::Qwen3Next => {
                self.matrix(&format!("{name}.in_proj_qkvz.weight"), &[channels + values, hidden], 1.0);
                self.matrix(&format!("{name}.in_proj_ba.weight"), &[2 * heads, hidden], 0.5);
            }
            Naming::Qwen35 => {
                self.matrix(&format!("{name}.in_proj_qkv.weight"), &[channels, hidden], 1.0);
                self.matrix(&format!("{name}.in_proj_z.weight"), &[values, hidden], 1.0);
                self.matrix(&format!("{name}.in_proj_b.weight"), &[heads, hidden], 0.5);
                self.matrix(&format!("{name}.in_proj_a.weight"), &[heads, hidden], 0.5);
            }
        }
        let taps = (0..channels * 4).map(|_| 0.5 * self.normal()).collect();
        self.tensor(&format!("{name}.conv1d.weight"), &[channels, 1, 4], taps);
        let a_log = self.a_log(heads, spec.half_lives);
        self.tensor(&format!("{name}.A_log"), &[heads], a_log);
        self.tensor(&format!("{name}.dt_bias"), &[heads], vec![Self::dt_bias(); heads]);
        self.norm(&format!("{name}.norm.weight"), width, 1.0);
        self.matrix(&format!("{name}.out_proj.weight"), &[hidden, values], 1.0);
    }

    /// With [`Draw::dt_bias`], a head forgets half in so many tokens, log-uniform.
    fn a_log(&mut self, heads: usize, half_lives: (f64, f64)) -> Vec<f64> {
        let (short, long) = (half_lives.0.ln(), half_lives.1.ln());
        let mut one = || {
            let half = (short + (long - short) * self.uniform()).exp();
            (std::f64::consts::LN_2 / half).ln()
        };
        (0..heads).map(|_| one()).collect()
    }

    /// `ln(e - 1)`: softplus is 1 at zero input.
    fn dt_bias() -> f64 {
        (std::f64::consts::E - 1.0).ln()
    }

    fn full(&mut self, name: &str, spec: &RandomSpec) {
        let ((heads, kv_heads), width, hidden) = (spec.full_heads, spec.full_width, spec.hidden);
        self.matrix(&format!("{name}.q_proj.weight"), &[2 * heads * width, hidden], 1.0);
        self.matrix(&format!("{name}.k_proj.weight"), &[kv_heads * width, hidden], 1.0);
        self.matrix(&format!("{name}.v_proj.weight"), &[kv_heads * width, hidden], 1.0);
        self.norm(&format!("{name}.q_norm.weight"), width, 0.0);
        self.norm(&format!("{name}.k_norm.weight"), width, 0.0);
        self.matrix(&format!("{name}.o_proj.weight"), &[hidden, heads * width], 1.0);
    }

    /// As many matrices, one behind the other.
    fn stack(&mut self, name: &str, shape: [usize; 3]) {
        let scale = 1.0 / (shape[2] as f64).sqrt();
        let values = (0..shape.iter().product()).map(|_| scale * self.normal()).collect();
        self.tensor(name, &shape, values);
    }

    /// Normal values of variance `scale^2 / in`, so that activations keep their size.
    fn matrix(&mut self, name: &str, shape: &[usize; 2], scale: f64) {
        let scale = scale / (shape[1] as f64).sqrt();
        let values = (0..shape[0] * shape[1]).map(|_| scale * self.normal()).collect();
        self.tensor(name, shape, values);
    }

    fn norm(&mut self, name: &str, width: usize, centre: f64) {
        let values = (0..width).map(|_| centre + 0.1 * self.normal()).collect();
        self.tensor(name, &[width], values);
    }

    fn tensor(&mut self, name: &str, shape: &[usize], values: Vec<f64>) {
        let values = values.into_iter().map(|value| value as f32);
        let (name, shape) = (name.to_owned(), shape.to_vec());
        if let (Some(blocks), [count @ .., rows, columns], true) = (self.blocks, &shape[..], is_coded(&name))
        {
            let of = [count.iter().product(), *rows, *columns];
            let (codes, factors) = encode(&values.collect::<Vec<_>>(), of, blocks);
            let factors = factors.into_iter().flat_map(f32::to_le_bytes).collect();
            self.tensors.push((format!("{name}_scale_inv"), Dtype::F32, blocks.factors_of(&shape), factors));
            self.tensors.push((name, Dtype::F8_E4M3, shape, codes));
            return;
        }
        let (dtype, bytes) = match self.half_precision {
            true => (Dtype::BF16, values.flat_map(|value| bf16::from_f32(value).to_le_bytes()).collect()),
            false => (Dtype::F32, values.flat_map(f32::to_le_bytes).collect()),
        };
        self.tensors.push((name, dtype, shape, bytes));
    }

    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In (0, 1).
    fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64 + f64::EPSILON / 4.0
    }

    /// By Box and Muller.
    fn normal(&mut self) -> f64 {
        (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }
}
