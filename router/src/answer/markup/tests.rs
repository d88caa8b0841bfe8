use proptest::prelude::*;
use serde_json::json;

use super::*;

fn reading(names: &[&str]) -> Reading {
    let schema =
        json!({"type": "object", "properties": {"city": {"type": "string"}, "n": {"type": "integer"}}});
    let functions = names.iter().map(|name| ((*name).to_owned(), schema.clone())).collect();
    Reading { functions, ..Reading::default() }
}

/// Fragments of the same kind joined.
fn join(fragments: Vec<Fragment>) -> Vec<Fragment> {
    let mut joined: Vec<Fragment> = Vec::new();
    for fragment in fragments {
        match (joined.last_mut(), &fragment) {
            (Some(Fragment::Content(all)), Fragment::Content(text))
            | (Some(Fragment::Reasoning(all)), Fragment::Reasoning(text)) => all.push_str(text),
            (
                Some(Fragment::CallArguments { index, text: all }),
                Fragment::CallArguments { index: other, text },
            ) if index == other => all.push_str(text),
            _ => joined.push(fragment),
        }
    }
    joined
}

fn read<'a>(reading: Reading, pieces: impl IntoIterator<Item = &'a str>) -> Vec<Fragment> {
    let (mut markup, mut out) = (Markup::new(reading), Vec::new());
    for piece in pieces {
        markup.push(piece, &mut out);
    }
    markup.finish(&mut out);
    join(out)
}

fn one_at_a_time(names: &[&str], text: &str) -> Vec<Fragment> {
    let pieces: Vec<String> = text.chars().map(String::from).collect();
    let split = read(reading(names), pieces.iter().map(String::as_str));
    assert_eq!(split, read(reading(names), [text]), "split and whole differ");
    split
}

fn content(text: &str) -> Fragment {
    Fragment::Content(text.to_owned())
}

fn call(index: usize, name: &str, arguments: &str) -> [Fragment; 2] {
    [
        Fragment::CallStart { index, name: name.to_owned() },
        Fragment::CallArguments { index, text: arguments.to_owned() },
    ]
}

const TWO_CALLS: &str = "<think>x</think>\n<tool_call>\n{\"name\":\"get_weather\",\"arguments\":{\"city\":\"Oslo\"}}\n</tool_call>\n<tool_call>\n{\"name\":\"add\",\"arguments\":{\"a\":2,\"s\":\"</tool_call> {\\\"}\"}}\n</tool_call>";

#[test]
fn parallel_calls_behind_reasoning_have_their_own_index_and_exact_json() {
    let mut expected = vec![Fragment::Reasoning("x".to_owned())];
    expected.extend(call(0, "get_weather", "{\"city\":\"Oslo\"}"));
    expected.extend(call(1, "add", "{\"a\":2,\"s\":\"</tool_call> {\\\"}\"}"));
    assert_eq!(one_at_a_time(&["get_weather", "add"], TWO_CALLS), expected);
}

#[test]
fn text_before_a_call_loses_only_the_space_at_the_call() {
    let text = "Let me see. \n\n<tool_call>\n{\"name\": \"add\", \"arguments\": {}}\n</tool_call>\n";
    let mut expected = vec![content("Let me see.")];
    expected.extend(call(0, "add", "{}"));
    assert_eq!(one_at_a_time(&["add"], text), expected);
}

#[test]
fn arguments_may_be_missing_null_a_string_or_come_first() {
    for (body, arguments) in [
        ("{\"name\":\"add\"}", "{}"),
        ("{\"name\":\"add\",\"arguments\":null}", "{}"),
        ("{\"name\":\"add\",\"arguments\":\"{\\\"a\\\":1}\"}", "{\"a\":1}"),
        ("{\"arguments\":{\"a\":[1,{}]},\"name\":\"add\"}", "{\"a\":[1,{}]}"),
        ("{ \"name\" : \"add\" , \"arguments\" : {\"a\" : 1} , \"x\" : {} }", "{\"a\" : 1}"),
    ] {
        let text = format!("<tool_call>{body}</tool_call>");
        assert_eq!(one_at_a_time(&["add"], &text), call(0, "add", arguments), "{body}");
    }
}

#[test]
fn a_call_of_an_undeclared_name_is_text() {
    let text = "So: <tool_call>\n{\"name\":\"rm\",\"arguments\":{}}\n</tool_call> done";
    assert_eq!(one_at_a_time(&["add"], text), [content(text)]);
    assert_eq!(one_at_a_time(&[], TWO_CALLS)[0], Fragment::Reasoning("x".to_owned()));
    assert_eq!(one_at_a_time(&[], "a <tool_call> b"), [content("a <tool_call> b")]);
}

#[test]
fn a_broken_call_is_text_and_a_good_one_behind_it_is_found() {
    let text = "<tool_call>nothing\n<tool_call>{\"name\":\"add\",\"arguments\":{\"a\":1}}</tool_call>";
    let mut expected = vec![content("<tool_call>nothing")];
    expected.extend(call(0, "add", "{\"a\":1}"));
    assert_eq!(one_at_a_time(&["add"], text), expected);
}

#[test]
fn a_cut_call_leaves_no_markup_in_the_content() {
    assert_eq!(one_at_a_time(&["add"], "Yes.\n<tool_call>\n{\"name\":\"ad"), [content("Yes.")]);
    let cut = one_at_a_time(&["add"], "<tool_call>\n{\"name\":\"add\",\"arguments\":{\"a\":");
    assert_eq!(cut, call(0, "add", "{\"a\":"));
}

#[test]
fn a_forgotten_bracket_does_not_swallow_what_follows() {
    let text = "<tool_call>{\"name\":\"add\",\"arguments\":{\"a\":1}\n</tool_call>after";
    let mut expected = call(0, "add", "{\"a\":1}").to_vec();
    expected.push(content("after"));
    assert_eq!(one_at_a_time(&["add"], text), expected);
}

#[test]
fn xml_calls_take_their_types_from_the_schema() {
    let text = "<tool_call>\n<function=add>\n<parameter=city>\n12\n</parameter>\n<parameter=n>\n7\n</parameter>\n<parameter=free>\n[1, 2]\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=add>\n</function>\n</tool_call>";
    let mut expected = call(0, "add", "{\"city\": \"12\", \"n\": 7, \"free\": [1,2]}").to_vec();
    expected.extend(call(1, "add", "{}"));
    assert_eq!(one_at_a_time(&["add"], text), expected);
}

#[test]
fn reasoning_is_trimmed_and_the_answer_follows() {
    let text = "<think>\nso it\nis \n</think>\n\n The answer. \n";
    let expected = [Fragment::Reasoning("so it\nis".to_owned()), content("The answer. \n")];
    assert_eq!(one_at_a_time(&[], text), expected);
    assert_eq!(one_at_a_time(&["add"], text), expected);
    let open = Reading { thinking: true, ..Reading::default() };
    assert_eq!(read(open, ["\nso it\nis \n</thi", "nk>\n\n The answer. \n"]), expected);
}

#[test]
fn a_plain_reading_changes_nothing() {
    let plain = Reading { plain: true, ..reading(&["get_weather"]) };
    assert_eq!(read(plain, [TWO_CALLS]), [content(TWO_CALLS)]);
    assert_eq!(one_at_a_time(&[], "  spaces stay \n"), [content("  spaces stay \n")]);
}

#[test]
fn a_single_call_ends_the_answer() {
    let single = Reading { single_call: true, ..reading(&["get_weather", "add"]) };
    let (mut markup, mut out) = (Markup::new(single), Vec::new());
    markup.push(TWO_CALLS, &mut out);
    assert!(markup.is_over());
    markup.finish(&mut out);
    assert_eq!(markup.calls(), 1);
}

proptest! {
    /// Any text made of markup and noise, cut anywhere, reads the same as in one piece.
    #[test]
    fn any_split_reads_the_same(
        words in prop::collection::vec(prop::sample::select(vec![
            "<think>", "</think>", "<tool_call>", "</tool_call>", "{\"name\":\"add\"", ",\"arguments\":", "{\"a\":",
            "\"}\"", "}", "}}", "\n", " ", "é", "text", "<", "<function=add>", "<parameter=n>", "</parameter>",
            "</function>", "\\\"", "\"", "7", "<tool_call>{\"name\":\"add\",\"arguments\":{\"a\":1}}</tool_call>",
        ]), 0..24),
        cuts in prop::collection::vec(0usize..400, 0..12),
    ) {
        let text = words.concat();
        let mut cuts: Vec<usize> = cuts.into_iter().filter(|at| text.is_char_boundary(*at)).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]);
        let mut single = Reading { single_call: true, ..reading(&["add"]) };
        single.single_call = words.len() % 5 == 0;
        prop_assert_eq!(read(single.clone(), pieces), read(single, [text.as_str()]));
    }
}
