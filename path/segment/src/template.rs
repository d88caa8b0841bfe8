//! The chat template, in an environment that renders byte for byte what transformers' does.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use hypic_domain::flow::Origin;
use hypic_domain::prompt::{Chat, Message, Role, TextPart};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest};
use minijinja::{Environment, Error, ErrorKind, Value};
use serde_json::Map;

use crate::context::{Shape, variables};
use crate::error::SegmentError;
use crate::mark::{DeclaredPart, Marks, Tracked};

mod python;
mod source;

const NAME: &str = "chat_template";

/// Tells the time to templates that print a date.
pub type Clock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// A compiled chat template.
pub(crate) struct ChatTemplate {
    plain: Environment<'static>,
    marked: Environment<'static>,
    probes: Vec<String>,
    specials: Map<String, serde_json::Value>,
    joins_parts: bool,
}

/// A rendered conversation.
pub(crate) struct Rendered {
    pub(crate) text: String,
    /// `None` where the template changes marked strings: then nothing is known but the text.
    pub(crate) tracking: Option<Tracking>,
}

/// What is known of a rendered conversation's parts.
pub(crate) struct Tracking {
    /// What users wrote, in bytes: sorted, disjoint.
    pub(crate) user: Vec<Range<usize>>,
    /// Declared parts in prompt order, each with its place.
    pub(crate) parts: Vec<(DeclaredPart, Range<usize>)>,
}

impl ChatTemplate {
    /// Compiles `source`, as it stands in `file`. `specials` are the variables every rendering gets (`bos_token`, …).
    ///
    /// # Errors
    /// `CompileTemplate` if it has a fault, names a filter or function that does not exist, or cannot render
    /// one user turn.
    pub(crate) fn compile(
        source: &str,
        file: &Path,
        specials: Map<String, serde_json::Value>,
        clock: &Clock,
    ) -> Result<Self, SegmentError> {
        let refuse = |source: Error| SegmentError::CompileTemplate {
            file: file.to_owned(),
            line: source.line().unwrap_or(0),
            source,
        };
        let source = source::without_generation_tags(source);
        let mut template = Self {
            plain: environment(&source, clock, false).map_err(refuse)?,
            marked: environment(&source, clock, true).map_err(refuse)?,
            probes: source::probes(&source),
            specials,
            joins_parts: false,
        };
        let turn = |texts: &[&str]| Chat {
            messages: vec![Message {
                role: Role::User,
                content: texts.iter().map(|t| TextPart { text: (*t).to_owned(), marked: false }).collect(),
                tool_calls: Vec::new(),
                tool_call_id: None,
                name: None,
                reasoning: None,
            }],
            add_generation_prompt: true,
            ..Chat::default()
        };
        match template.render(&turn(&["x"])) {
            Err(SegmentError::RenderTemplate { source, .. }) => return Err(refuse(source)),
            other => other.map(drop)?,
        }
        // Some templates know user content only as a string: they fail on parts, or leave them out.
        let parts = template.render(&turn(&["first", "second"]));
        template.joins_parts =
            !parts.is_ok_and(|rendered| rendered.tracking.is_some_and(|tracking| tracking.parts.len() == 2));
        Ok(template)
    }

    /// Renders a conversation, with its parts tracked where the template lets them through.
    ///
    /// Leading system messages are rendered as they are; where the template refuses or drops one, they are
    /// merged into the first, two line breaks between them.
    ///
    /// # Errors
    /// `RenderTemplate` if the template fails, `InvalidRequest` for call arguments that are no object, for a
    /// system or user text that the template leaves out, and for a continuation that is none.
    pub(crate) fn render(&self, chat: &Chat) -> Result<Rendered, SegmentError> {
        let shape = Shape { joins_parts: self.joins_parts, merges_system: false };
        let first = self.render_shaped(chat, shape);
        let leading = chat.messages.iter().take_while(|message| message.role == Role::System).count();
        match first {
            Err(_) if leading > 1 => self.render_shaped(chat, Shape { merges_system: true, ..shape }),
            other => other,
        }
    }

    fn render_shaped(&self, chat: &Chat, shape: Shape) -> Result<Rendered, SegmentError> {
        let plain = self.run(&self.plain, variables(chat, shape, &self.probes, None)?)?;
        let mut marks = Marks::default();
        let marked = variables(chat, shape, &self.probes, Some(&mut marks))?;
        // A failure on marked strings alone is the marks' fault.
        let tracked = self.run(&self.marked, marked).ok().and_then(|marked| marks.read(&marked, &plain));
        let tracking = tracked.map(|tracked| tracking(tracked, &marks)).transpose()?;
        let rendered = Rendered { text: plain, tracking };
        if chat.continue_final_message { rendered.left_open(chat) } else { Ok(rendered) }
    }

    fn run(
        &self,
        environment: &Environment<'static>,
        variables: Map<String, serde_json::Value>,
    ) -> Result<String, SegmentError> {
        let mut all = self.specials.clone();
        all.extend(variables);
        let template = environment.get_template(NAME).map_err(SegmentError::render)?;
        template.render(python::value(&all.into())).map_err(SegmentError::render)
    }
}

fn tracking(tracked: Tracked, marks: &Marks) -> Result<Tracking, SegmentError> {
    if let Some(lost) = tracked.lost.iter().map(|part| &marks.parts[*part]).find(|part| part.required) {
        let param = lost.message.map_or("tools".to_owned(), |index| format!("messages[{index}].content"));
        return Err(SegmentError::invalid(param, "has text that the model's chat template leaves out"));
    }
    let parts = tracked.spans.into_iter().map(|(part, span)| (marks.parts[part].clone(), span)).collect();
    Ok(Tracking { user: tracked.user, parts })
}

impl Rendered {
    /// The prompt up to the end of the last message's text: its turn stays open.
    fn left_open(mut self, chat: &Chat) -> Result<Self, SegmentError> {
        let last = chat.messages.len().checked_sub(1);
        let end = self.tracking.as_ref().and_then(|tracking| {
            let (part, span) = tracking.parts.last()?;
            (part.message == last && part.origin == Origin::Turn).then_some(span.end)
        });
        let (Some(end), Some(tracking)) = (end, &mut self.tracking) else {
            let reason = "cannot continue the last message: the chat template rewrites it";
            return Err(SegmentError::invalid("continue_final_message", reason));
        };
        self.text.truncate(end);
        tracking.user.retain_mut(|range| {
            range.end = range.end.min(end);
            range.start < range.end
        });
        Ok(self)
    }
}

fn environment(source: &str, clock: &Clock, marked: bool) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_formatter(|out, _, value| out.write_str(&python::text(value)?).map_err(Error::from));
    environment.add_filter("string", |value: &Value| python::text(value));
    environment.add_filter("tojson", move |value: &Value, args: Rest<Value>, options: Kwargs| {
        python::dumps(value, &args, &options, marked).map(Value::from_safe_string)
    });
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    let clock = Arc::clone(clock);
    environment.add_function("strftime_now", move |format: &str| python::strftime(clock(), format));
    environment.add_template_owned(NAME, source.to_owned())?;
    Ok(environment)
}
