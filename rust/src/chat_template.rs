//! Chat templates (Jinja), rendered as transformers' `apply_chat_template` renders them:
//! https://github.com/huggingface/transformers, utils/chat_template_utils.py.

use std::ffi::CString;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};

use crate::abi::{guarded, Bytes, Failure, Sink, Status};
use crate::python_text::{to_json, to_text, JsonStyle};

const NAME: &str = "chat template";

pub struct ChatTemplate {
    environment: Environment<'static>,
}

#[no_mangle]
pub unsafe extern "C" fn medley_chat_template_compile(
    source: Bytes,
    out: *mut *mut ChatTemplate,
    error: Sink,
) -> Status {
    guarded(error, || {
        let source = source.text("the chat template")?;
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_formatter(|out, _state, value| {
            if let Some(text) = value.as_str() {
                return out.write_str(text).map_err(Error::from);
            }
            out.write_str(&to_text(value)?).map_err(Error::from)
        });
        environment.add_filter("tojson", to_json_filter);
        environment.add_filter("string", |value: Value| to_text(&value));
        environment.add_test("iterable", is_iterable);
        environment.add_function("raise_exception", raise_exception);
        environment
            .add_template_owned(NAME, without_generation_tags(source))
            .map_err(|e| Failure::invalid(format!("cannot compile the chat template: {e}")))?;
        *out = Box::into_raw(Box::new(ChatTemplate { environment }));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn medley_chat_template_free(template: *mut ChatTemplate) {
    drop(Box::from_raw(template));
}

/// `variables` is a JSON object: the names that the template sees. `now` (seconds since the epoch)
/// is the local time that `strftime_now` prints.
#[no_mangle]
pub unsafe extern "C" fn medley_chat_template_render(
    template: *const ChatTemplate,
    variables: Bytes,
    now: i64,
    text: Sink,
    error: Sink,
) -> Status {
    guarded(error, || {
        let variables: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(variables.get())
                .map_err(|e| Failure::invalid(format!("the template's variables: {e}")))?;
        let mut context: Vec<(String, Value)> = variables
            .into_iter()
            .map(|(name, value)| (name, Value::from_serialize(value)))
            .collect();
        context.push((
            "strftime_now".into(),
            Value::from_function(move |format: &str| strftime(now, format)),
        ));
        let rendered = (*template)
            .environment
            .get_template(NAME)
            .and_then(|t| t.render(Value::from_iter(context)))
            .map_err(|e| Failure::invalid(message_of(&e)))?;
        text.put(rendered.as_bytes());
        Ok(())
    })
}

/// What a template said in `raise_exception`.
#[derive(Debug)]
struct Raised(String);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

fn message_of(error: &Error) -> String {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(raised) = current.downcast_ref::<Raised>() {
            return format!("the chat template refused the messages: {raised}");
        }
        cause = current.source();
    }
    format!("cannot render the chat template: {error}")
}

/// As in Jinja2, where None is not iterable and an undefined value is an empty sequence.
fn is_iterable(value: &Value) -> bool {
    !matches!(value.kind(), ValueKind::None | ValueKind::Bool | ValueKind::Number)
}

fn to_json_filter(value: &Value, kwargs: Kwargs) -> Result<Value, Error> {
    let indent = match kwargs.get::<Option<Value>>("indent")?.filter(|v| !v.is_none()) {
        None => None,
        Some(value) => match value.as_str() {
            Some(text) => Some(text.to_string()),
            None => Some(" ".repeat(usize::try_from(value).unwrap_or(0))),
        },
    };
    let separators = kwargs.get::<Option<Vec<String>>>("separators")?;
    let (item_separator, key_separator) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                "tojson: separators must be a pair of strings",
            ))
        }
        None => (if indent.is_some() { "," } else { ", " }.to_string(), ": ".to_string()),
    };
    let style = JsonStyle {
        indent,
        item_separator,
        key_separator,
        ensure_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    kwargs.assert_all_used()?;
    Ok(Value::from(to_json(value, &style)?))
}

fn strftime(now: i64, format: &str) -> Result<String, Error> {
    let format = CString::new(format)
        .map_err(|_| Error::new(ErrorKind::InvalidOperation, "strftime_now: NUL in the format"))?;
    let mut buffer = vec![0u8; 256 + 16 * format.as_bytes().len()];
    let size = unsafe {
        let mut parts: libc::tm = std::mem::zeroed();
        let time: libc::time_t = now;
        libc::localtime_r(&time, &mut parts);
        libc::strftime(buffer.as_mut_ptr().cast(), buffer.len(), format.as_ptr(), &parts)
    };
    Ok(String::from_utf8_lossy(&buffer[..size]).into_owned())
}

/// `{% generation %}` marks assistant text for training masks and prints nothing, so it becomes a
/// condition that always holds.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let inner = &tag[2..];
        let signed = inner.strip_prefix(['-', '+']).unwrap_or(inner);
        let word_and_more = signed.trim_start();
        let replaced = [("generation", "if true"), ("endgeneration", "endif")].iter().find_map(
            |(word, replacement)| {
                let after = word_and_more.strip_prefix(word)?;
                let close = after.trim_start();
                (close.starts_with("%}") || close.starts_with("-%}") || close.starts_with("+%}"))
                    .then_some((*replacement, after))
            },
        );
        match replaced {
            Some((replacement, after)) => {
                out.push_str(&tag[..tag.len() - word_and_more.len()]);
                out.push_str(replacement);
                rest = after;
            }
            None => {
                out.push_str("{%");
                rest = inner;
            }
        }
    }
    out.push_str(rest);
    out
}
