use super::*;
use crate::rope::Scaling;
use serde_json::json;

/// hypic-tiny's config, in short.
fn tiny() -> Value {
    json!({
        "model_type": "qwen3_next", "hidden_size": 256, "intermediate_size": 640, "vocab_size": 3072,
        "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 64,
        "linear_value_head_dim": 64, "linear_conv_kernel_dim": 4, "max_position_embeddings": 16384,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
    })
}

fn with(changes: Value) -> Value {
    let mut config = tiny();
    for (name, value) in changes.as_object().unwrap() {
        if value == "absent" {
            config.as_object_mut().unwrap().remove(name);
        } else {
            config[name] = value.clone();
        }
    }
    config
}

fn parse(config: &Value) -> Result<Config, LoadError> {
    Config::parse(config, ModelId::from("m"))
}

fn rope(changes: Value) -> Result<Rope, LoadError> {
    parse(&with(changes)).map(|config| config.rope)
}

#[test]
fn layers_follow_the_interval_or_the_list() {
    let full = |config: &Config| {
        config.spec.layers.iter().map(|layer| matches!(layer, LayerSpec::Full(_))).collect::<Vec<_>>()
    };
    let fours = [false, false, false, true, false, false, false, true];
    assert_eq!(full(&parse(&tiny()).unwrap()), fours);
    let twos = parse(&with(json!({"full_attention_interval": 2}))).unwrap();
    assert_eq!(full(&twos), [false, true, false, true, false, true, false, true]);
    assert!(parse(&with(json!({"layer_types": ["full_attention"]}))).is_err());
    let odd = vec!["sliding_attention"; 8];
    let error = parse(&with(json!({"layer_types": odd}))).unwrap_err().to_string();
    assert!(error.contains("sliding_attention"), "{error}");
}

#[test]
fn theta_is_read_from_either_place_and_contradictions_are_refused() {
    let theta = |changes| rope(changes).map(|rope| rope.theta);
    assert_eq!(theta(json!({"rope_parameters": "absent", "rope_theta": 500000})).unwrap(), 500000.0);
    assert_eq!(theta(json!({"rope_theta": 10000})).unwrap(), 10000.0);
    assert!(theta(json!({"rope_theta": 500000})).is_err());
    assert!(theta(json!({"rope_parameters": "absent"})).is_err());
    let per_layer = json!({"rope_parameters": {"full_attention": {"rope_theta": 7.5e4}}});
    assert_eq!(theta(per_layer).unwrap(), 7.5e4);
    assert_eq!(
        rope(json!({"rope_parameters": {"rope_theta": 1e4}, "partial_rotary_factor": 0.5})).unwrap().rotary,
        32
    );
    assert_eq!(rope(json!({"partial_rotary_factor": 0.5})).unwrap().rotary, 16);
}

#[test]
fn scalings_are_read_or_refused_by_name() {
    let scaled = |scaling: Value| rope(json!({"rope_scaling": scaling}));
    assert_eq!(scaled(Value::Null).unwrap().scaling, Scaling::Default);
    assert_eq!(
        scaled(json!({"type": "linear", "factor": 2})).unwrap().scaling,
        Scaling::Linear { factor: 2.0 }
    );
    let yarn = json!({"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 2048});
    assert!(matches!(scaled(yarn).unwrap().scaling, Scaling::Yarn { factor: 4.0, original: 2048.0, .. }));
    for kind in ["dynamic", "longrope", "foo"] {
        let error = scaled(json!({"rope_type": kind, "factor": 2})).unwrap_err().to_string();
        assert!(error.contains(kind), "{error}");
    }
    assert!(scaled(json!({"rope_type": "llama3", "factor": 8})).is_err());
    assert!(scaled(json!({"type": "linear", "rope_type": "yarn", "factor": 8})).is_err());
}

/// From transformers 5.17: `ROPE_INIT_FUNCTIONS` for 16 of 64 channels, theta 10000.
#[test]
fn stretched_frequencies_equal_those_of_transformers() {
    let close = |scaling: Value, right: &[f64], factor: f64| {
        let (frequencies, attention) = rope(json!({"rope_scaling": scaling})).unwrap().frequencies();
        for (frequency, right) in frequencies.iter().zip(right) {
            assert!((frequency / right - 1.0).abs() < 1e-6, "{frequencies:?}");
        }
        assert_eq!(frequencies.len(), right.len());
        assert!((attention - factor).abs() < 1e-12);
    };
    include!("golden_frequencies.rs");
}

#[test]
fn every_rope_has_an_identity_of_its_own() {
    let mut seen = std::collections::HashSet::new();
    for changes in [
        json!({}),
        json!({"rope_parameters": {"rope_theta": 20000.0}}),
        json!({"rope_scaling": {"type": "linear", "factor": 2}}),
        json!({"rope_scaling": {"type": "linear", "factor": 3}}),
        json!({"rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.5}}),
        json!({"tie_word_embeddings": true}),
    ] {
        assert!(seen.insert(parse(&with(changes)).unwrap().canonical()));
    }
}

#[test]
fn the_innermost_config_decides_about_tying() {
    let nested = |inner: Value, outer: Value| {
        let mut root =
            json!({"model_type": "qwen3_5", "text_config": with(json!({"model_type": "qwen3_5_text"}))});
        root["text_config"]["tie_word_embeddings"] = inner;
        root["tie_word_embeddings"] = outer;
        parse(&root).unwrap().tied
    };
    assert!(!nested(json!(false), json!(true)));
    assert!(nested(json!(true), json!(false)));
    assert!(nested(Value::Null, json!(true)));
    assert!(!nested(Value::Null, Value::Null));
    assert!(!parse(&tiny()).unwrap().tied);
}

#[test]
fn what_is_not_built_is_refused_by_name() {
    for (changes, word) in [
        (json!({"num_experts": 8}), "num_experts_per_tok"),
        (
            json!({"num_experts": 8, "num_experts_per_tok": 9, "moe_intermediate_size": 32}),
            "num_experts_per_tok",
        ),
        (json!({"model_type": "qwen9_moe"}), "qwen9_moe"),
        (json!({"quantization_config": {"quant_method": "awq"}}), "awq"),
        (json!({"quantization_config": {}}), "quantization_config"),
        (json!({"quantization_config": "fp8"}), "quantization_config"),
        (json!({"quantization_config": {"quant_method": 8}}), "quantization_config"),
        (json!({"quantization_config": {"quant_method": "fp8"}}), "weight_block_size"),
        (json!({"quantization_config": {"quant_method": "fp8", "fmt": "e5m2"}}), "e5m2"),
        (json!({"hidden_act": "gelu"}), "gelu"),
        (json!({"attention_bias": true}), "attention_bias"),
        (json!({"hidden_size": "absent"}), "hidden_size"),
        (json!({"hidden_size": 0}), "hidden_size"),
        (json!({"vocab_size": 1.5}), "vocab_size"),
        (json!({"linear_num_value_heads": 3}), "linear_num_value_heads"),
    ] {
        let error = parse(&with(changes)).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
    for sizes in
        [json!([128, 0]), json!([-1, 128]), json!(["128", "128"]), json!([128]), json!(128), json!([1e19, 1])]
    {
        let quantised = json!({"quant_method": "fp8", "weight_block_size": sizes});
        let error = parse(&with(json!({"quantization_config": quantised}))).unwrap_err().to_string();
        assert!(error.contains("weight_block_size"), "{sizes}: {error}");
    }
    assert!(parse(&with(json!({"quantization_config": null}))).is_ok());
    let dense: Vec<usize> = (0..8).collect();
    assert!(parse(&with(json!({"num_experts": 8, "mlp_only_layers": dense}))).is_ok());
}

#[test]
fn a_layer_is_dense_or_a_mixture() {
    let mixture = json!({
        "model_type": "qwen3_5_moe_text", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 48, "mlp_only_layers": [1],
    });
    let config = parse(&with(mixture.clone())).unwrap();
    let shape = ExpertShape { experts: 8, top: 2, intermediate: 32, renormalise: true };
    let expected = FeedForward::Mixture { shape, shared: 48 };
    assert_eq!(config.feed_forward[..3], [expected, FeedForward::Dense(640), expected]);
    assert!(config.canonical().contains("mlp=moe:8:2:32:48:true,640,moe:8:2:32:48:true;"));
    assert!(parse(&tiny()).unwrap().canonical().contains("mlp=640;"));
    let mut all = mixture;
    all["mlp_only_layers"] = json!([]);
    all["intermediate_size"] = json!("absent");
    all["norm_topk_prob"] = json!(false);
    let config = parse(&with(all)).unwrap();
    let shape = ExpertShape { renormalise: false, ..shape };
    assert_eq!(config.feed_forward, [FeedForward::Mixture { shape, shared: 48 }; 8]);
}
