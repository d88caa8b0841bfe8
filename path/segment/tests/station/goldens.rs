use super::*;

const TEMPLATES: [&str; 4] = ["hypic_tiny", "qwen3_like", "qwen35_like", "odds_and_ends"];

fn segmenter(template: &str, model: &ModelFile) -> Segmenter {
    let folder = checkpoint(|folder| {
        if template != "hypic_tiny" {
            fs::write(folder.join("chat_template.jinja"), fixture(&format!("{template}.jinja"))).unwrap();
        }
    });
    Segmenter::load(folder.path(), model, &clock()).unwrap()
}

fn for_each(mut check: impl FnMut(&str, &str, Chat, &Value)) {
    let goldens: Value = serde_json::from_str(&fixture("goldens.json")).unwrap();
    for golden in goldens.as_array().unwrap() {
        for template in TEMPLATES {
            let case = golden["case"].as_str().unwrap();
            check(case, template, from_openai(&golden["request"]), &golden["rendered"][template]);
        }
    }
}

#[test]
fn prompts_and_ids_equal_transformers() {
    // Nothing is long enough to be a segment: the ids are those of the whole text.
    let live = ModelFile { segment_min: Tokens(u32::MAX), ..model() };
    let segmenters = TEMPLATES.map(|template| (template, segmenter(template, &live)));
    for_each(|case, template, chat, golden| {
        let (_, segmenter) = segmenters.iter().find(|(name, _)| *name == template).unwrap();
        let found = segmenter.render(&Prompt::Chat(chat.clone()));
        let Some(text) = golden["text"].as_str() else {
            // Leading system messages are merged where the template takes only one.
            if case != "two_systems" {
                let error = found.unwrap_err();
                assert!(error.is_clients() && error.to_string().contains(golden["error"].as_str().unwrap()));
            }
            return;
        };
        assert_eq!(found.unwrap(), text, "{case} in {template}");
        // An answer's thoughts inside its content are ordinary text, unless the template takes them apart.
        if case == "thinks_in_the_content" && !template.starts_with("qwen") {
            return;
        }
        let expected: Vec<u32> = serde_json::from_value(golden["ids"].clone()).unwrap();
        assert_eq!(ids(&segment_chat(segmenter, chat).pieces), expected, "{case} in {template}");
    });
    for (template, segmenter) in &segmenters {
        assert_eq!(segmenter.untracked(), 0, "{template}");
    }
}

#[test]
fn cut_prompts_spell_the_same_text() {
    let small = ModelFile { segment_min: Tokens(4), seam: Tokens(2), segment_max: Tokens(40), ..model() };
    let segmenters = TEMPLATES.map(|template| (template, segmenter(template, &small)));
    let mut segments = 0;
    for_each(|case, template, chat, golden| {
        let (_, segmenter) = segmenters.iter().find(|(name, _)| *name == template).unwrap();
        let Some(text) = golden["text"].as_str() else { return };
        let segmented = segment_chat(segmenter, chat);
        assert_eq!(decode(segmenter, &ids(&segmented.pieces)), text, "{case} in {template}");
        for (_, piece) in segmented.segments() {
            assert!((3..=40).contains(&piece.ids.len()));
            segments += 1;
        }
    });
    assert!(segments > 200, "{segments}");
}

#[test]
fn leading_system_messages_are_merged_where_only_one_is_known() {
    let segmenter = segmenter("qwen35_like", &model());
    let messages = ["You answer.", "Be brief."].map(|text| says(Role::System, &[text]));
    let chat = chat([messages.to_vec(), vec![says(Role::User, &["x"])]].concat());
    let text = segmenter.render(&Prompt::Chat(chat)).unwrap();
    assert!(text.starts_with("<|im_start|>system\nYou answer.\n\nBe brief.<|im_end|>\n"), "{text}");
}
