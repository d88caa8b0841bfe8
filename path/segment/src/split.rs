//! Where a text that is too long for one segment is split: at edges that its content defines, so that an edit
//! moves the splits beside it and no others.

use std::ops::Range;

/// Bytes on each side of an edge that decide whether it is taken.
const WINDOW: usize = 24;

/// Splits `text` into ranges of at most `max` tokens and, where it can, at least `min`. `tokens` are the byte
/// ranges of its tokens; `fixed` are ranges that must not be split.
///
/// Of all edges that may end a piece the best kind wins (paragraph, line, word), and of those the one whose
/// surroundings have the least hash: the same edge wins again when the text before it changes.
pub(crate) fn split(
    text: &str,
    tokens: &[Range<usize>],
    fixed: &[Range<usize>],
    min: usize,
    max: usize,
) -> Vec<Range<usize>> {
    let min = min.min(max / 2).max(1);
    let (mut pieces, mut first, mut start) = (Vec::new(), 0, 0);
    while tokens.len() - first > max {
        let last = (first + max).min(tokens.len() - min);
        let edges = (first + min.max(max / 4)..=last).map(|token| (token, tokens[token].start));
        let best = edges
            .filter(|(_, at)| *at > start && text.is_char_boundary(*at))
            .filter(|(_, at)| !fixed.iter().any(|range| range.start < *at && *at < range.end))
            .min_by_key(|(_, at)| (kind(text, *at), hash(text.as_bytes(), *at)));
        let Some((token, at)) = best else { break };
        pieces.push(start..at);
        (first, start) = (token, at);
    }
    pieces.push(start..text.len());
    pieces
}

/// 0 for the best kind of edge.
fn kind(text: &str, at: usize) -> u8 {
    let (before, after) = text.split_at(at);
    if before.ends_with("\n\n") {
        0
    } else if before.ends_with('\n') {
        1
    } else if after.starts_with(char::is_whitespace) || before.ends_with(char::is_whitespace) {
        2
    } else {
        3
    }
}

/// FNV-1a of the bytes around an edge.
fn hash(text: &[u8], at: usize) -> u64 {
    let around = &text[at.saturating_sub(WINDOW)..(at + WINDOW).min(text.len())];
    around
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every word with the space before it is a token.
    fn words(text: &str) -> Vec<Range<usize>> {
        let mut starts: Vec<usize> = text.match_indices([' ', '\n']).map(|(at, _)| at).collect();
        starts.insert(0, 0);
        starts.dedup();
        starts.iter().enumerate().map(|(i, s)| *s..starts.get(i + 1).copied().unwrap_or(text.len())).collect()
    }

    fn document(paragraphs: Range<usize>) -> String {
        paragraphs
            .map(|p| {
                (0..5 + p * 7 % 40).map(|w| format!("w{}", p * 31 + w * 17)).collect::<Vec<_>>().join(" ")
            })
            .collect::<Vec<_>>()
            .join("\n\n")
    }

    #[test]
    fn pieces_join_to_the_text_and_keep_the_limits() {
        let text = document(0..200);
        let tokens = words(&text);
        for (min, max) in [(16, 64), (16, 256), (1, 2), (100, 120)] {
            let pieces = split(&text, &tokens, &[], min, max);
            assert_eq!(pieces.iter().map(|piece| &text[piece.clone()]).collect::<String>(), text);
            for piece in &pieces {
                let count = tokens.iter().filter(|token| piece.contains(&token.start)).count();
                assert!(count <= max && count >= min.min(max / 2), "{count} of {min}..={max}");
            }
        }
    }

    #[test]
    fn an_edit_moves_few_splits() {
        let before = document(0..400);
        let mut after = before.clone();
        let middle = after.find("\n\n").unwrap();
        after.insert_str(middle, " and some more words that were not there");
        let cut = |text: &str| -> Vec<String> {
            split(text, &words(text), &[], 16, 256).into_iter().map(|piece| text[piece].to_owned()).collect()
        };
        let (old, new) = (cut(&before), cut(&after));
        let kept = new.iter().filter(|piece| old.contains(piece)).count();
        assert!(kept * 10 >= old.len() * 7, "{kept} of {} kept", old.len());
    }

    #[test]
    fn fixed_ranges_stay_whole() {
        let text = document(0..20);
        let tokens = words(&text);
        let first = split(&text, &tokens, &[], 4, 20)[0].end;
        let around = std::slice::from_ref(&(first - 1..first + 1)).to_vec();
        assert!(split(&text, &tokens, &around, 4, 20).iter().all(|piece| piece.end != first));
    }
}
