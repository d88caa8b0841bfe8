use super::*;

fn questions() -> Vec<Value> {
    let file = fs::File::open(tiny().join("../../eval/questions.jsonl.gz")).unwrap();
    let mut text = String::new();
    flate2::read::GzDecoder::new(file).read_to_string(&mut text).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn question(row: &Value) -> (Vec<String>, Chat) {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let documents: Vec<String> = row["documents"].as_array().unwrap().iter().map(text).collect();
    let mut parts: Vec<&str> = documents.iter().map(String::as_str).collect();
    let (system, asked) = (text(&row["system"]), text(&row["question"]));
    parts.push(&asked);
    let chat = chat(vec![says(Role::System, &[&system]), says(Role::User, &parts)]);
    (documents, chat)
}

#[test]
fn every_document_of_the_evaluation_is_one_segment() {
    let segmenter = load_tiny();
    let tokenise = |text: &str| {
        let prompt = Prompt::Text(text.to_owned());
        ids(&segmenter.segment(request(prompt), &IDENTITY).unwrap().pieces)
    };
    for row in questions() {
        let (documents, chat) = question(&row);
        let text = segmenter.render(&Prompt::Chat(chat.clone())).unwrap();
        let segmented = segment_chat(&segmenter, chat);
        // As the prototype cuts: what is before the documents, each document, what is behind them.
        let (mut expected, mut at) = (Vec::new(), text.find(&documents[0]).unwrap());
        expected.push((tokenise(&text[..at]), false));
        for document in &documents {
            assert!(text[at..].starts_with(document.as_str()));
            expected.push((tokenise(document), true));
            at += document.len();
        }
        expected.push((tokenise(&text[at..]), false));
        let found: Vec<_> =
            segmented.pieces.iter().map(|piece| (piece.ids.clone(), piece.key.is_some())).collect();
        assert_eq!(found, expected, "{}", row["id"]);
        for (_, piece) in segmented.segments() {
            assert_eq!(piece.origin, Origin::Part);
            assert_eq!(piece.key, Some(SegmentKey::derive(&IDENTITY, &Scope([9; 32]), &piece.ids)));
        }
    }
}

#[test]
fn cuts_change_few_tokens_of_the_evaluation() {
    let segmenter = load_tiny();
    let mut total = hypic_segment::CutChanges::default();
    for row in questions() {
        let found = segmenter.cut_changes(&Prompt::Chat(question(&row).1)).unwrap();
        total.cuts += found.cuts;
        total.tokens += found.tokens;
        total.changed += found.changed;
    }
    println!("cuts {}, tokens {}, changed by cuts {}", total.cuts, total.tokens, total.changed);
    assert!(total.cuts > 0 && total.changed * 1000 < total.tokens, "{total:?}");
}

#[test]
fn a_cut_inside_a_word_is_counted() {
    let segmenter = load_tiny();
    let word = "The bright floor finished every spring and the rough lamp returned. Igor permit: heron. Mira badge: copper. It fini";
    let prompt = Prompt::Text(format!("{word}{}shed early.", model().separator));
    let found = segmenter.cut_changes(&prompt).unwrap();
    assert!(found.cuts == 1 && found.changed > 0, "{found:?}");
}

const DOCUMENT: &str =
    "## Tower report\n The bright floor finished every spring. Igor permit: heron. Mira badge: copper.\n";

#[test]
fn a_part_has_the_same_key_at_every_place() {
    let segmenter = load_tiny();
    let other =
        "## Council diary\n The old guide continued inside the yard in silence. Zara motto: pillow.\n";
    let keys = |texts: &[&str]| -> Vec<_> {
        let segmented = segment_chat(&segmenter, chat(vec![says(Role::User, texts)]));
        segmented.segments().map(|(_, piece)| piece.key).collect()
    };
    let (ab, ba) = (keys(&[DOCUMENT, other, "Which?"]), keys(&[other, DOCUMENT, "Which?"]));
    assert_eq!(ab.len(), 2);
    assert_eq!(ab, [ba[1], ba[0]]);
    // A part of an earlier turn, a system text and a tool's result are cut the same way.
    let mut result = says(Role::Tool, &[DOCUMENT]);
    result.tool_call_id = Some("c".to_owned());
    let turns = vec![
        says(Role::System, &[DOCUMENT]),
        says(Role::User, &[DOCUMENT, "Which?"]),
        says(Role::Assistant, &[DOCUMENT]),
        result,
        says(Role::User, &["And now?"]),
    ];
    let segmented = segment_chat(&segmenter, chat(turns));
    let found: Vec<_> = segmented.segments().map(|(_, piece)| (piece.origin, piece.key)).collect();
    let origins = [Origin::System, Origin::Part, Origin::Turn, Origin::ToolResult];
    assert_eq!(found, origins.map(|origin| (origin, ab[0])));
}

#[test]
fn each_tool_is_one_segment() {
    let segmenter = load_tiny();
    let tool = |name: &str| Tool {
        schema: json!({"type": "function", "function": {"name": name, "parameters": {"type": "object",
            "properties": {"name": {"type": "string"}, "field": {"type": "string"}}}}}),
        marked: false,
    };
    let tools = ["lookup", "grep", "open"].map(tool).to_vec();
    let asked = Chat { tools: tools.clone(), ..chat(vec![says(Role::User, &["x"])]) };
    let segmented = segment_chat(&segmenter, asked);
    let found: Vec<_> =
        segmented.segments().map(|(_, piece)| (piece.origin, decode(&segmenter, &piece.ids))).collect();
    let printed = |tool: &Tool| tool.schema.to_string().replace(":", ": ").replace(",", ", ");
    assert_eq!(found, tools.iter().map(|tool| (Origin::Tool, printed(tool))).collect::<Vec<_>>());
}

#[test]
fn short_parts_and_the_question_stay_live() {
    let segmenter = load_tiny();
    let parts = ["Mira badge: copper.", "Igor permit: heron.", DOCUMENT];
    let segmented = segment_chat(&segmenter, chat(vec![says(Role::User, &parts)]));
    assert_eq!(segmented.pieces.len(), 1);
    assert_eq!(segmented.pieces[0].origin, Origin::Query);
    // The seam would take the whole of such a segment.
    let wide = ModelFile { seam: Tokens(4000), ..model() };
    let wide = Segmenter::load(&tiny(), &wide, &clock()).unwrap();
    assert_eq!(segment_chat(&wide, chat(vec![says(Role::User, &[DOCUMENT, "x"])])).pieces.len(), 1);
}

#[test]
fn long_parts_are_split_where_an_edit_moves_little() {
    let model = ModelFile { segment_max: Tokens(128), ..model() };
    let segmenter = Segmenter::load(&tiny(), &model, &clock()).unwrap();
    let rows = questions();
    let long: String = rows[..4].iter().flat_map(|row| question(row).0).collect::<Vec<_>>().join("\n");
    let cut = |text: &str| {
        let segmented = segment_chat(&segmenter, chat(vec![says(Role::User, &[text, "Which?"])]));
        assert!(segmented.segments().all(|(_, piece)| (16..=128).contains(&piece.ids.len())));
        let middle: String = segmented.segments().map(|(_, piece)| decode(&segmenter, &piece.ids)).collect();
        assert_eq!(middle, text);
        segmented.segments().map(|(_, piece)| piece.key).collect::<Vec<_>>()
    };
    let (before, after) = (cut(&long), cut(&format!("An edit at the very beginning of it all.\n{long}")));
    let kept = after.iter().filter(|key| before.contains(key)).count();
    assert!(before.len() > 16 && kept * 4 > before.len() * 3, "{kept} of {} kept", before.len());
}

#[test]
fn text_without_any_edge_is_split_under_the_maximum() {
    let model = ModelFile { segment_max: Tokens(64), ..model() };
    let segmenter = Segmenter::load(&tiny(), &model, &clock()).unwrap();
    for unit in ["a", "🧠", "é", " ", "\n"] {
        let text = format!("x{}x", unit.repeat(3000));
        let segmented = segment_chat(&segmenter, chat(vec![says(Role::User, &[&text, "Which?"])]));
        assert!(segmented.segments().all(|(_, piece)| piece.ids.len() <= 64), "{unit:?}");
        let all = decode(&segmenter, &ids(&segmented.pieces));
        assert!(all.contains(&text), "{unit:?}");
    }
}

#[test]
fn separators_mark_segments_of_a_plain_completion() {
    let segmenter = load_tiny();
    let mark = model().separator;
    let prompt = Prompt::Text(format!("{DOCUMENT}{mark}{mark}{DOCUMENT}{mark}short{mark}Which?"));
    let segmented = segment(&segmenter, prompt).unwrap();
    let found: Vec<_> = segmented.pieces.iter().map(|piece| (piece.origin, piece.key.is_some())).collect();
    assert_eq!(found, [(Origin::Marked, true), (Origin::Marked, true), (Origin::Query, false)]);
    assert_eq!(decode(&segmenter, &segmented.pieces[2].ids), "shortWhich?");
    // What is marked last is the question, and so is a text without marks.
    for text in [DOCUMENT.to_owned(), format!("{DOCUMENT}{mark}")] {
        assert_eq!(segment(&segmenter, Prompt::Text(text)).unwrap().pieces.len(), 1);
    }
}

#[test]
fn snapshots_stand_where_turns_and_segments_end() {
    let segmenter = load_tiny();
    let long = DOCUMENT.repeat(4);
    let asked = vec![says(Role::System, &[&long]), says(Role::User, &["Which?"])];
    let first = segment_chat(&segmenter, chat(asked.clone()));
    let again = [asked, vec![says(Role::Assistant, &["heron"]), says(Role::User, &["Sure?"])]].concat();
    let second = segment_chat(&segmenter, chat(again));
    for segmented in [&first, &second] {
        let all = ids(&segmented.pieces);
        let ends: Vec<usize> = segmented
            .pieces
            .iter()
            .scan(0, |end, piece| {
                *end += piece.ids.len();
                Some(*end)
            })
            .collect();
        assert!(!segmented.boundaries.is_empty());
        for (tokens, key) in &segmented.boundaries {
            let end = tokens.0 as usize;
            assert!(end >= 64 && end < all.len() && ends.contains(&end));
            let expected = SegmentKey::derive_snapshot(&IDENTITY, &Scope([9; 32]), &all[..end], "exact");
            assert_eq!(*key, expected);
        }
    }
    // Each boundary of the first turn is one of the second, which has more.
    assert!(first.boundaries.iter().all(|boundary| second.boundaries.contains(boundary)));
    assert!(second.boundaries.len() > first.boundaries.len());
}

#[test]
fn boundaries_are_capped_and_spread() {
    let segmenter = load_tiny();
    let texts: Vec<String> = (0..200).map(|index| format!("{DOCUMENT} Number {index}.\n")).collect();
    let parts: Vec<&str> = texts.iter().map(String::as_str).chain(["Which?"]).collect();
    let segmented = segment_chat(&segmenter, chat(vec![says(Role::User, &parts)]));
    assert_eq!(segmented.segments().count(), 200);
    assert_eq!(segmented.boundaries.len(), 64);
    let last = segmented.tokens().0 - segmented.pieces.last().unwrap().ids.len() as u32;
    assert_eq!(segmented.boundaries[63].0, Tokens(last));
    assert!(segmented.boundaries.windows(2).all(|pair| pair[0].0 < pair[1].0));
}

#[test]
fn stripped_reasoning_is_a_correct_miss() {
    let template = fixture("qwen3_like.jinja");
    let segmenter = load_template(&template).unwrap();
    let mut call = says(Role::Assistant, &[]);
    call.reasoning =
        Some("I must look up what the badge of Mira is, and the permit of Igor, in the documents.".into());
    call.tool_calls =
        vec![ToolCall { id: "c".into(), name: "lookup".into(), arguments: json!({"name": "Mira"}) }];
    let mut result = says(Role::Tool, &["copper"]);
    result.tool_call_id = Some("c".to_owned());
    let loops = vec![says(Role::User, &["Which?"]), call, result];
    let turn = |messages: Vec<Message>| {
        let segmented = segment_chat(&segmenter, chat(messages));
        segmented
            .segments()
            .filter(|(_, piece)| piece.origin == Origin::Turn)
            .map(|(_, p)| p.clone())
            .collect::<Vec<_>>()
    };
    let within = turn(loops.clone());
    assert!(decode(&segmenter, &within[0].ids).contains("I must look up"));
    let later =
        turn([loops, vec![says(Role::Assistant, &["It is copper."]), says(Role::User, &["Sure?"])]].concat());
    assert!(later.iter().all(|piece| piece.key != within[0].key));
}

#[test]
fn what_was_cut_before_is_cut_the_same_again() {
    let (warm, model) = (load_tiny(), ModelFile { segment_max: Tokens(64), ..model() });
    let long = Segmenter::load(&tiny(), &model, &clock()).unwrap();
    for row in questions().iter().step_by(40) {
        let (_, asked) = question(row);
        let mut turned = asked.clone();
        turned.messages[1].content.reverse();
        for segmenter in [&warm, &long] {
            segment_chat(segmenter, asked.clone());
        }
        let again = [&warm, &long].map(|segmenter| segment_chat(segmenter, turned.clone()).pieces);
        let fresh = Segmenter::load(&tiny(), &model, &clock()).unwrap();
        assert_eq!(
            again,
            [load_tiny(), fresh].map(|segmenter| segment_chat(&segmenter, turned.clone()).pieces)
        );
    }
}
