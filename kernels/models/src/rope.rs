//! Rotary angles: the variants of a config, and their table.

use std::f64::consts::PI;

use serde_json::{Map, Value};

use crate::error::LoadError;
use crate::keys::{key, number};

/// How a position becomes angles.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base of the wavelengths.
    pub theta: f64,
    /// Leading channels of a key that are rotated.
    pub rotary: usize,
    /// Stretching for contexts longer than those of the training.
    pub scaling: Scaling,
}

/// Stretching of the angles, named as `rope_type` names it.
#[derive(Clone, Debug, PartialEq)]
pub enum Scaling {
    /// None.
    Default,
    /// All angles divided by a factor.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// Long waves divided, short ones kept, a ramp between (arXiv 2309.00071).
    Yarn {
        /// The factor.
        factor: f64,
        /// Context of the training.
        original: f64,
        /// Turns over the original context from which on a wave is kept.
        fast: f64,
        /// Turns up to which a wave is divided.
        slow: f64,
        /// Whether the ramp's ends are rounded to whole channels.
        truncate: bool,
        /// Factor on cosines and sines.
        attention: f64,
    },
    /// Llama 3's ramp over wavelengths.
    Llama3 {
        /// The factor.
        factor: f64,
        /// Context of the training.
        original: f64,
        /// Waves longer than `original / low` are divided.
        low: f64,
        /// Waves shorter than `original / high` are kept.
        high: f64,
    },
}

impl Rope {
    /// Reads `rope_parameters`, or the older `rope_theta` and `rope_scaling`. What contradicts itself, is unknown
    /// or lacks a number is refused: a guess here spoils long prompts without any error.
    pub(crate) fn parse(text: &Map<String, Value>, head: usize, context: usize) -> Result<Self, LoadError> {
        let object = |name: &str| match text.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value.as_object().map(Some).ok_or_else(|| key(name, "not an object")),
        };
        let mut parameters = object("rope_parameters")?;
        if let Some(Value::Object(inner)) = parameters.and_then(|p| p.get("full_attention")) {
            parameters = Some(inner);
        }
        let scaling = object("rope_scaling")?;
        let inner_theta = parameters.map_or(Ok(None), |p| number(p, "rope_theta"))?;
        let outer_theta = number(text, "rope_theta")?;
        let theta = match (inner_theta, outer_theta) {
            (Some(inner), Some(outer)) if inner != outer => {
                return Err(key("rope_theta", format!("{outer} at the root, {inner} in rope_parameters")));
            }
            (Some(theta), _) | (None, Some(theta)) if theta > 1.0 => theta,
            (None, None) => return Err(key("rope_theta", "missing")),
            _ => return Err(key("rope_theta", "must be over 1")),
        };
        // As transformers: the innermost one counts, and 0.25 is the default of both classes.
        let partial = parameters.map_or(Ok(None), |p| number(p, "partial_rotary_factor"))?;
        let partial = partial.or(number(text, "partial_rotary_factor")?).unwrap_or(0.25);
        let rotary = (head as f64 * partial) as usize;
        if !(0.0..=1.0).contains(&partial) || rotary == 0 || !rotary.is_multiple_of(2) {
            return Err(key(
                "partial_rotary_factor",
                format!("{partial} of {head} channels can't be rotated"),
            ));
        }
        let inner = parameters.map_or(Ok(Scaling::Default), |p| parse_scaling(p, context))?;
        let outer = scaling.map_or(Ok(Scaling::Default), |p| parse_scaling(p, context))?;
        let scaling = match (inner, outer) {
            (scaling, Scaling::Default) | (Scaling::Default, scaling) => scaling,
            (inner, outer) if inner == outer => inner,
            (inner, outer) => {
                return Err(key("rope_scaling", format!("{outer:?}, but rope_parameters say {inner:?}")));
            }
        };
        Ok(Self { theta, rotary, scaling })
    }

    /// For the identity.
    pub fn canonical(&self) -> String {
        format!("{:?}:{:e}:{}", self.scaling, self.theta, self.rotary).replace(' ', "")
    }

    /// Angle per position of each pair of channels, `[rotary / 2]`, and the factor on cosines and sines.
    pub fn frequencies(&self) -> (Vec<f64>, f64) {
        let dim = self.rotary as f64;
        let plain: Vec<f64> =
            (0..self.rotary / 2).map(|i| self.theta.powf(-(2.0 * i as f64) / dim)).collect();
        match self.scaling {
            Scaling::Default => (plain, 1.0),
            Scaling::Linear { factor } => (plain.into_iter().map(|f| f / factor).collect(), 1.0),
            Scaling::Yarn { factor, original, fast, slow, truncate, attention } => {
                let channel =
                    |turns: f64| dim * (original / (turns * 2.0 * PI)).ln() / (2.0 * self.theta.ln());
                let (mut low, mut high) = (channel(fast), channel(slow));
                if truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                (low, high) = (low.max(0.0), high.min(dim - 1.0));
                if low == high {
                    high += 0.001;
                }
                let stretch = |(i, f): (usize, f64)| {
                    let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                    f / factor * ramp + f * (1.0 - ramp)
                };
                (plain.into_iter().enumerate().map(stretch).collect(), attention)
            }
            Scaling::Llama3 { factor, original, low, high } => {
                let stretch = |f: f64| {
                    let wave = 2.0 * PI / f;
                    if wave > original / low {
                        f / factor
                    } else if wave < original / high {
                        f
                    } else {
                        let smooth = (original / wave - low) / (high - low);
                        (1.0 - smooth) * f / factor + smooth * f
                    }
                };
                (plain.into_iter().map(stretch).collect(), 1.0)
            }
        }
    }

    /// `[positions, rotary]`: cosines, then sines, of f64 angles; fp32 angles lose 5e-4 at 32k tokens.
    pub fn table(&self, positions: usize) -> Vec<f32> {
        let (frequencies, factor) = self.frequencies();
        let mut table = Vec::with_capacity(positions * self.rotary);
        for position in 0..positions {
            let angles = frequencies.iter().map(|f| f * position as f64);
            table.extend(angles.clone().map(|angle| (angle.cos() * factor) as f32));
            table.extend(angles.map(|angle| (angle.sin() * factor) as f32));
        }
        table
    }
}

fn parse_scaling(config: &Map<String, Value>, context: usize) -> Result<Scaling, LoadError> {
    let kind = match (config.get("rope_type"), config.get("type")) {
        (Some(a), Some(b)) if a != b => return Err(key("rope_type", format!("{a}, but type is {b}"))),
        (Some(kind), _) | (None, Some(kind)) => {
            kind.as_str().ok_or_else(|| key("rope_type", format!("{kind} is no name")))?
        }
        (None, None) => "default",
    };
    let need = |name: &str| match number(config, name)? {
        Some(number) if number > 0.0 => Ok(number),
        _ => Err(key(name, format!("needed by rope_type \"{kind}\""))),
    };
    match kind {
        // Qwen3.5 adds sections for pictures; text has the same position in all of them.
        "default" | "mrope" => Ok(Scaling::Default),
        "linear" => Ok(Scaling::Linear { factor: need("factor")? }),
        "yarn" => {
            let factor = need("factor")?;
            let original = number(config, "original_max_position_embeddings")?.unwrap_or(context as f64);
            let scale = |m: f64| if factor <= 1.0 { 1.0 } else { 0.1 * m * factor.ln() + 1.0 };
            let inferred = match (number(config, "mscale")?, number(config, "mscale_all_dim")?) {
                (Some(m), Some(all)) if m != 0.0 && all != 0.0 => scale(m) / scale(all),
                _ => scale(1.0),
            };
            Ok(Scaling::Yarn {
                factor,
                original,
                fast: number(config, "beta_fast")?.unwrap_or(32.0),
                slow: number(config, "beta_slow")?.unwrap_or(1.0),
                truncate: config.get("truncate").and_then(Value::as_bool).unwrap_or(true),
                attention: number(config, "attention_factor")?.unwrap_or(inferred),
            })
        }
        "llama3" => Ok(Scaling::Llama3 {
            factor: need("factor")?,
            original: need("original_max_position_embeddings")?,
            low: need("low_freq_factor")?,
            high: need("high_freq_factor")?,
        }),
        other => Err(LoadError::ChooseModel {
            what: format!("rope_type \"{other}\""),
            reason: "built are default, linear, yarn and llama3".to_owned(),
        }),
    }
}
