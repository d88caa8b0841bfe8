//! What is read out of a template's source before it is compiled.

/// The source with `{% generation %}` blocks, which mark trainable text, as blocks without effect. Lines stay
/// where they are.
pub(crate) fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else { break };
        let tag = &rest[start + 2..start + length];
        let word = tag.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        out.push_str(&rest[..start + 2]);
        match word {
            "generation" => out.push_str(&tag.replacen(word, "if true", 1)),
            "endgeneration" => out.push_str(&tag.replacen(word, "endif", 1)),
            _ => out.push_str(tag),
        }
        out.push_str("%}");
        rest = &rest[start + length + 2..];
    }
    out.push_str(rest);
    out
}

/// The string literals that the template looks for in other strings: arguments of `split`, `startswith` and
/// their like, and the left side of `in`.
pub(crate) fn probes(source: &str) -> Vec<String> {
    const METHODS: [&str; 9] = [
        ".split(",
        ".rsplit(",
        ".startswith(",
        ".endswith(",
        ".replace(",
        ".find(",
        ".rfind(",
        ".partition(",
        ".count(",
    ];
    let mut found = Vec::new();
    let mut rest = source;
    let mut before = String::new();
    while let Some(start) = rest.find(['\'', '"']) {
        let quote = if rest.as_bytes()[start] == b'"' { '"' } else { '\'' };
        before.push_str(&rest[..start]);
        let Some((literal, length)) = literal(&rest[start + 1..], quote) else { break };
        rest = &rest[start + 1 + length..];
        let after = rest.trim_start();
        let sought = METHODS.iter().any(|method| before.trim_end().ends_with(method))
            || after.starts_with("in ")
            || after.strip_prefix("not").is_some_and(|after| after.trim_start().starts_with("in "));
        if sought && !literal.trim().is_empty() && !found.contains(&literal) {
            found.push(literal);
        }
        before.clear();
    }
    found
}

/// The value of a literal up to its closing quote, and the bytes it takes with that quote.
fn literal(source: &str, quote: char) -> Option<(String, usize)> {
    let mut value = String::new();
    let mut chars = source.char_indices();
    while let Some((at, next)) = chars.next() {
        match next {
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                't' => value.push('\t'),
                'r' => value.push('\r'),
                other => value.push(other),
            },
            next if next == quote => return Some((value, at + next.len_utf8())),
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_tags_lose_their_effect_and_keep_their_lines() {
        let source = "a\n{%- generation -%}\nb{% endgeneration %}\n{% if x %}{% endif %}";
        assert_eq!(
            without_generation_tags(source),
            "a\n{%- if true -%}\nb{% endif %}\n{% if x %}{% endif %}"
        );
    }

    #[test]
    fn sought_literals_are_found_and_written_ones_are_not() {
        let source = r#"{{ '<|im_start|>' }}{% if "</think>" in content %}{{ content.split('</think>')[0].rstrip('\n')
            .split( '<think>' ) }}{% endif %}{{ x.startswith('<tool_response>') }}{% if '[x]' not in y %}"#;
        assert_eq!(probes(source), ["</think>", "<think>", "<tool_response>", "[x]"]);
    }
}
