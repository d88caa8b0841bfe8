use super::*;

fn refused(edit: impl FnOnce(&Path)) -> SegmentError {
    let folder = checkpoint(edit);
    let error = Segmenter::load(folder.path(), &model(), &clock()).err().expect("must be refused");
    assert!(!error.is_clients());
    error
}

fn end_ids(generation: Value, config: Value, token: Value) -> Result<Vec<u32>, SegmentError> {
    let folder = checkpoint(|folder| {
        edit_json(folder.join("generation_config.json"), |json| json["eos_token_id"] = generation);
        edit_json(folder.join("config.json"), |json| json["eos_token_id"] = config);
        edit_json(folder.join("tokenizer_config.json"), |json| json["eos_token"] = token);
    });
    Segmenter::load(folder.path(), &model(), &clock()).map(|segmenter| segmenter.end_ids().to_vec())
}

#[test]
fn end_ids_come_from_all_places_that_name_them() {
    assert_eq!(load_tiny().end_ids(), [3063, 3065]);
    let found = |generation, config, token| end_ids(generation, config, token).unwrap();
    let none = || Value::Null;
    assert_eq!(found(json!([7, 9]), json!(8), none()), [7, 9]);
    assert_eq!(found(json!(9), json!(8), json!("<|im_end|>")), [9, 3065]);
    assert_eq!(found(none(), json!(7), json!({"content": "<|im_end|>"})), [7, 3065]);
    assert_eq!(found(none(), json!([7, 7]), none()), [7]);
    assert_eq!(found(json!([]), json!(7), none()), [0; 0]);
    assert_eq!(found(none(), none(), none()), [0; 0]);
}

#[test]
fn wrong_end_ids_are_refused() {
    for wrong in [json!("7"), json!(3072), json!([7, -1]), json!(1.5), json!({"a": 1})] {
        let error = end_ids(wrong.clone(), json!(7), Value::Null).unwrap_err().to_string();
        assert!(error.contains("generation_config.json") && error.contains("eos_token_id"), "{error}");
        let error = end_ids(Value::Null, wrong, Value::Null).unwrap_err().to_string();
        assert!(error.contains("/config.json"), "{error}");
    }
    let error = end_ids(json!(7), json!(7), json!("<|nothing|>")).unwrap_err().to_string();
    assert!(error.contains("<|nothing|>"), "{error}");
}

#[test]
fn a_broken_template_is_refused_with_its_line() {
    for (template, line) in [
        ("a\n{% for m in messages %}\n{{ m.content }\n{% endfor %}", 3),
        ("a\n\n{% unknown_tag %}", 3),
        ("a\n{{ messages | no_such_filter }}", 2),
        ("a\n\n\n{{ no_such_function() }}", 4),
    ] {
        let error = refused(|folder| fs::write(folder.join("chat_template.jinja"), template).unwrap());
        let SegmentError::CompileTemplate { line: found, .. } = error else { panic!("{error:?}") };
        assert_eq!(found, line, "{template}");
    }
}

#[test]
fn files_that_do_not_fit_are_named() {
    let named = |edit: &dyn Fn(&Path), file: &str| {
        let error = refused(edit).to_string();
        assert!(error.contains(file), "{error}");
    };
    named(&|folder| fs::remove_file(folder.join("tokenizer.json")).unwrap(), "tokenizer.json");
    named(&|folder| fs::write(folder.join("tokenizer.json"), "{}").unwrap(), "tokenizer.json");
    named(&|folder| fs::write(folder.join("tokenizer.json"), "{\"version\"").unwrap(), "tokenizer.json");
    named(&|folder| fs::remove_file(folder.join("config.json")).unwrap(), "config.json");
    named(&|folder| fs::write(folder.join("tokenizer_config.json"), "[").unwrap(), "tokenizer_config.json");
    // A tokenizer of another model.
    named(
        &|folder| edit_json(folder.join("config.json"), |json| json["vocab_size"] = json!(3070)),
        "tokenizer.json",
    );
    // Pieces of it could not be tokenised apart.
    let spaced =
        |json: &mut Value| json["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true.into();
    named(&|folder| edit_json(folder.join("tokenizer.json"), spaced), "tokenizer.json");
}

#[test]
fn a_model_without_a_template_serves_plain_completions() {
    let folder = checkpoint(|folder| {
        edit_json(folder.join("tokenizer_config.json"), |json| json["chat_template"] = Value::Null);
    });
    let segmenter = Segmenter::load(folder.path(), &model(), &clock()).unwrap();
    assert!(segment(&segmenter, Prompt::Text("x".to_owned())).is_ok());
    let error = segment(&segmenter, Prompt::Chat(chat(vec![says(Role::User, &["x"])]))).unwrap_err();
    assert_eq!(error.param(), Some("messages"));
}

#[test]
fn a_named_template_serves_tools() {
    let folder = checkpoint(|folder| {
        edit_json(folder.join("tokenizer_config.json"), |json| {
            json["chat_template"] = json!([{"name": "default", "template": "plain {{ messages[0].content }}"},
                {"name": "tool_use", "template": "tools {{ messages[0].content }}"}]);
        });
    });
    let segmenter = Segmenter::load(folder.path(), &model(), &clock()).unwrap();
    let asked = chat(vec![says(Role::User, &["x"])]);
    assert_eq!(segmenter.render(&Prompt::Chat(asked.clone())).unwrap(), "plain x");
    let tools = vec![Tool { schema: json!({"type": "function"}), marked: false }];
    assert_eq!(segmenter.render(&Prompt::Chat(Chat { tools, ..asked })).unwrap(), "tools x");
}
