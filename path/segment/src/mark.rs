//! Marks around a user's strings: they pass through the template and say, behind it, which bytes of the
//! prompt a user wrote and to which declared part they belong.
//!
//! A mark must not change what the template does. So white space at a string's ends stays outside (a template
//! strips it as before), strings of white space alone get no mark (they stay empty to a template that strips
//! them), and texts that the template looks for, such as `</think>`, stay outside too: the string is marked
//! in stretches between them. That the marks were harmless is checked, not assumed: the prompt without its
//! marks must equal a rendering that never had any.

use std::ops::Range;

use hypic_domain::flow::Origin;

// Unicode noncharacters: reserved for a program's own use, and no template looks at them. A user who sends
// some only loses the tracking of that request.
const OPEN: char = '\u{fdd0}';
const CLOSE: char = '\u{fdd1}';
const OBJECT_OPEN: char = '\u{fdd2}';
const OBJECT_CLOSE: char = '\u{fdd3}';
const DIGIT: u32 = 0xfdd4;

/// A part of the prompt that a client declared: the unit that may become a segment.
#[derive(Clone, Debug)]
pub(crate) struct DeclaredPart {
    pub(crate) origin: Origin,
    /// The message it stands in; `None` for tools.
    pub(crate) message: Option<usize>,
    /// The template may not leave it out.
    pub(crate) required: bool,
}

/// A marked run of a user's string, and the text of that string beside it.
#[derive(Clone, Debug)]
struct Stretch {
    part: Option<usize>,
    before: String,
    after: String,
    /// The template may write the probes in it anew.
    rewritten: bool,
}

/// All marks of one rendering.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    pub(crate) parts: Vec<DeclaredPart>,
    stretches: Vec<Stretch>,
}

/// The tracked spans of a rendered prompt, in bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tracked {
    /// What users wrote: sorted, disjoint.
    pub(crate) user: Vec<Range<usize>>,
    /// Where declared parts stand: sorted, disjoint; a part torn by another has several.
    pub(crate) spans: Vec<(usize, Range<usize>)>,
    /// Parts of which some text is not in the prompt.
    pub(crate) lost: Vec<usize>,
}

impl Marks {
    pub(crate) fn declare(&mut self, part: DeclaredPart) -> usize {
        self.parts.push(part);
        self.parts.len() - 1
    }

    /// `text` with marks. `probes` are the texts that the template looks for. Where it takes a string apart
    /// at them and writes them anew, as it does with the thoughts in an answer, they are `rewritten`: the
    /// template's own.
    pub(crate) fn mark(
        &mut self,
        text: &str,
        part: Option<usize>,
        probes: &[String],
        rewritten: bool,
    ) -> String {
        let mut runs: Vec<Range<usize>> =
            between(text, probes).into_iter().filter_map(|run| trimmed(text, run)).collect();
        if runs.is_empty() {
            // Probes alone: marked as a whole. A template that acts on them then renders otherwise, which is
            // noticed, and such a text is never taken for the template's own.
            runs.extend(trimmed(text, 0..text.len()));
        }
        let mut marked = String::with_capacity(text.len() + 12 * runs.len());
        let mut at = 0;
        for (index, run) in runs.iter().enumerate() {
            let next = runs.get(index + 1).map_or(text.len(), |next| next.start);
            marked.push_str(&text[at..run.start]);
            marked.push(OPEN);
            marked.extend(format!("{:x}", self.stretches.len()).chars().filter_map(to_digit));
            marked.push_str(&text[run.clone()]);
            marked.push(CLOSE);
            self.stretches.push(Stretch {
                part,
                before: text[at..run.start].to_owned(),
                after: text[run.end..next].to_owned(),
                rewritten,
            });
            at = run.end;
        }
        marked.push_str(&text[at..]);
        marked
    }

    /// Takes the marks out of a rendered prompt. `None` if they do not pair, or if the text without them is
    /// not `plain`.
    pub(crate) fn read(&self, rendered: &str, plain: &str) -> Option<Tracked> {
        let mut text = String::with_capacity(plain.len());
        let mut found: Vec<(Option<usize>, Range<usize>)> = Vec::new();
        let mut user: Vec<Range<usize>> = Vec::new();
        let mut seen = vec![false; self.stretches.len()];
        let mut open: Option<(usize, usize)> = None;
        let mut objects: Vec<(usize, usize)> = Vec::new();
        let mut free: Vec<(usize, Range<usize>)> = Vec::new();
        let mut chars = rendered.chars().peekable();
        while let Some(next) = chars.next() {
            match next {
                OPEN => {
                    let mut id = 0;
                    while let Some(digit) = chars.peek().copied().and_then(from_digit) {
                        id = id * 16 + digit;
                        chars.next();
                    }
                    if open.is_some() || id >= self.stretches.len() {
                        return None;
                    }
                    open = Some((id, text.len()));
                }
                CLOSE => {
                    let (id, start) = open.take()?;
                    seen[id] = true;
                    let span = start..text.len();
                    if objects.is_empty() {
                        free.push((id, span));
                    } else {
                        // The object around it is the user's span; the string only says whose.
                        found.push((self.stretches[id].part, span));
                    }
                }
                OBJECT_OPEN => objects.push((text.len(), found.len())),
                OBJECT_CLOSE => {
                    let (start, first) = objects.pop()?;
                    let part = found[first..].iter().find_map(|(part, _)| *part);
                    found.truncate(first);
                    found.push((part, start..text.len()));
                    user.push(start..text.len());
                }
                other => text.push(other),
            }
        }
        if open.is_some() || !objects.is_empty() || text != plain {
            return None;
        }
        for (id, span) in free {
            let stretch = &self.stretches[id];
            let span = widen(&text, stretch, span);
            user.push(span.clone());
            found.push((stretch.part, span));
        }
        let lost = (0..self.parts.len())
            .filter(|part| {
                self.stretches.iter().zip(&seen).any(|(stretch, seen)| stretch.part == Some(*part) && !seen)
            })
            .collect();
        Some(Tracked { user: union(user), spans: cover(found), lost })
    }
}

/// Adds the user's own text beside a stretch as far as the prompt repeats it.
fn widen(text: &str, stretch: &Stretch, span: Range<usize>) -> Range<usize> {
    let same = |(a, b): &(char, char)| a == b && (!stretch.rewritten || a.is_whitespace());
    let before: usize = (stretch.before.chars().rev().zip(text[..span.start].chars().rev()))
        .take_while(same)
        .map(|(a, _)| a.len_utf8())
        .sum();
    let after: usize = (stretch.after.chars().zip(text[span.end..].chars()))
        .take_while(same)
        .map(|(a, _)| a.len_utf8())
        .sum();
    span.start - before..span.end + after
}

/// The mark around a JSON object that a template prints: its keys, too, are the user's.
pub(crate) fn around_object(json: &str) -> String {
    format!("{OBJECT_OPEN}{json}{OBJECT_CLOSE}")
}

/// Whether `text` is a plain name. Templates compare such strings (`string`, `function`) and look them up as
/// keys; they spell no control token, and need no mark.
pub(crate) fn is_plain_name(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '$'))
}

fn to_digit(hex: char) -> Option<char> {
    char::from_u32(DIGIT + hex.to_digit(16)?)
}

fn from_digit(c: char) -> Option<usize> {
    (c as u32).checked_sub(DIGIT).filter(|digit| *digit < 16).map(|digit| digit as usize)
}

/// The stretches of `text` between occurrences of probes; at one place the longest probe counts.
fn between(text: &str, probes: &[String]) -> Vec<Range<usize>> {
    let (mut runs, mut start, mut at) = (Vec::new(), 0, 0);
    while at < text.len() {
        let probe =
            probes.iter().filter(|probe| text[at..].starts_with(probe.as_str())).max_by_key(|p| p.len());
        if let Some(probe) = probe {
            runs.push(start..at);
            at += probe.len();
            start = at;
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    runs.push(start..text.len());
    runs
}

/// `run` without white space at its ends; `None` if nothing is left.
fn trimmed(text: &str, run: Range<usize>) -> Option<Range<usize>> {
    let inner = text[run.clone()].trim();
    let start = run.end - text[run].trim_start().len();
    (!inner.is_empty()).then_some(start..start + inner.len())
}

fn union(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

/// Joins the spans of one part, with the template's text between them, where no other part stands between.
fn cover(mut found: Vec<(Option<usize>, Range<usize>)>) -> Vec<(usize, Range<usize>)> {
    found.sort_by_key(|(_, span)| span.start);
    let mut spans: Vec<(usize, Range<usize>)> = Vec::new();
    for (part, span) in found {
        let Some(part) = part else { continue };
        match spans.last_mut() {
            Some((last, range)) if *last == part => range.end = range.end.max(span.end),
            // Two neighbours repeat the same white space: it stays with the first.
            Some((_, range)) if span.start < range.end => {
                let start = range.end;
                spans.push((part, start..span.end.max(start)));
            }
            _ => spans.push((part, span)),
        }
    }
    spans
}
