//! Parses JSON in one pass. A builder defines what is built from the text.

use std::borrow::Cow;

use super::number::Digits;
use super::{JsonError, MAX_WRITTEN_BYTES};

/// A fault and the byte at which it occurs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    pub(crate) at: usize,
    pub(crate) reason: String,
}

impl Fault {
    pub(crate) fn new(at: usize, reason: impl Into<String>) -> Self {
        Self { at, reason: reason.into() }
    }

    pub(crate) fn in_text(self, text: &[u8]) -> JsonError {
        let (line, column) = position(text, self.at);
        JsonError { reason: self.reason, line, column }
    }
}

/// The line and column of a byte, counted from 1.
fn position(text: &[u8], at: usize) -> (usize, usize) {
    let before = &text[..at.min(text.len())];
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    let column = before.iter().rev().take_while(|byte| **byte != b'\n').count() + 1;
    (line, column)
}

/// A value without parts.
pub(crate) enum Scalar<'a> {
    Null,
    Bool(bool),
    Number(Digits<'a>),
    String(Cow<'a, str>),
}

/// Builds a result from a text. Each part comes with the byte at which it begins.
pub(crate) trait Builder {
    type Value;
    type Array: Default;
    type Object: Default;

    fn scalar(&self, scalar: Scalar<'_>, at: usize) -> Self::Value;
    fn element(&self, array: &mut Self::Array, value: Self::Value, at: usize) -> Result<(), Fault>;
    fn member(
        &self,
        object: &mut Self::Object,
        name: Cow<'_, str>,
        value: Self::Value,
        at: usize,
    ) -> Result<(), Fault>;
    fn array(&self, array: Self::Array, at: usize) -> Self::Value;
    fn object(&self, object: Self::Object, at: usize) -> Self::Value;
}

/// Parses one value of at most `max_levels` levels, with nothing after it.
pub(crate) fn read<B: Builder>(text: &[u8], max_levels: usize, builder: B) -> Result<B::Value, Fault> {
    let text = std::str::from_utf8(text).map_err(|error| Fault::new(error.valid_up_to(), "invalid UTF-8"))?;
    let mut syntax = Syntax { text, at: 0, max_levels, written: 0, builder };
    let value = syntax.value(0)?;
    syntax.skip_space();
    match syntax.peek() {
        None => Ok(value),
        Some(_) => Err(syntax.fault("expected the end of the text")),
    }
}

/// A text and the current position in it.
struct Syntax<'a, B> {
    text: &'a str,
    at: usize,
    max_levels: usize,
    written: usize,
    builder: B,
}

impl<'a, B: Builder> Syntax<'a, B> {
    fn fault(&self, reason: &str) -> Fault {
        Fault::new(self.at, reason)
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let is_there = self.peek() == Some(byte);
        self.at += usize::from(is_there);
        is_there
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Parses the next value, inside `level` arrays and objects. It recurses at most `max_levels` times.
    fn value(&mut self, level: usize) -> Result<B::Value, Fault> {
        self.skip_space();
        let at = self.at;
        let scalar = match self.peek() {
            Some(b'{' | b'[') if level == self.max_levels => {
                return Err(self.fault(&format!("more than {} levels", self.max_levels)));
            }
            Some(b'{') => return self.object(level + 1),
            Some(b'[') => return self.array(level + 1),
            Some(b'"') => Scalar::String(self.string()?),
            Some(b'-' | b'0'..=b'9') => Scalar::Number(self.number()?),
            Some(b't') => self.word("true", Scalar::Bool(true))?,
            Some(b'f') => self.word("false", Scalar::Bool(false))?,
            Some(b'n') => self.word("null", Scalar::Null)?,
            Some(_) => return Err(self.fault("expected a value")),
            None => return Err(self.fault("the text ends where a value is expected")),
        };
        Ok(self.builder.scalar(scalar, at))
    }

    fn word(&mut self, word: &str, scalar: Scalar<'a>) -> Result<Scalar<'a>, Fault> {
        if !self.text[self.at..].starts_with(word) {
            return Err(self.fault("expected a value"));
        }
        self.at += word.len();
        Ok(scalar)
    }

    fn array(&mut self, level: usize) -> Result<B::Value, Fault> {
        let begin = self.at;
        self.at += 1;
        let mut array = B::Array::default();
        self.skip_space();
        if self.take(b']') {
            return Ok(self.builder.array(array, begin));
        }
        loop {
            self.skip_space();
            let at = self.at;
            let value = self.value(level)?;
            self.builder.element(&mut array, value, at)?;
            self.skip_space();
            if self.take(b']') {
                return Ok(self.builder.array(array, begin));
            }
            if !self.take(b',') {
                return Err(self.fault("expected , or ]"));
            }
        }
    }

    fn object(&mut self, level: usize) -> Result<B::Value, Fault> {
        let begin = self.at;
        self.at += 1;
        let mut object = B::Object::default();
        self.skip_space();
        if self.take(b'}') {
            return Ok(self.builder.object(object, begin));
        }
        loop {
            self.skip_space();
            let at = self.at;
            if self.peek() != Some(b'"') {
                return Err(self.fault("expected the name of a member"));
            }
            let name = self.string()?;
            self.skip_space();
            if !self.take(b':') {
                return Err(self.fault("expected :"));
            }
            let value = self.value(level)?;
            self.builder.member(&mut object, name, value, at)?;
            self.skip_space();
            if self.take(b'}') {
                return Ok(self.builder.object(object, begin));
            }
            if !self.take(b',') {
                return Err(self.fault("expected , or }"));
            }
        }
    }

    fn string(&mut self) -> Result<Cow<'a, str>, Fault> {
        self.at += 1;
        let mut unescaped = String::new();
        loop {
            let rest = &self.text[self.at..];
            let length = rest.bytes().take_while(|byte| !matches!(byte, b'"' | b'\\' | 0..=0x1f)).count();
            let plain = &rest[..length];
            self.at += length;
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    if unescaped.is_empty() {
                        return Ok(Cow::Borrowed(plain));
                    }
                    unescaped.push_str(plain);
                    return Ok(Cow::Owned(unescaped));
                }
                Some(b'\\') => {
                    unescaped.push_str(plain);
                    unescaped.push(self.escape()?);
                }
                Some(_) => return Err(self.fault("a control character within a string must be escaped")),
                None => return Err(self.fault("the text ends within a string")),
            }
        }
    }

    fn escape(&mut self) -> Result<char, Fault> {
        let begin = self.at;
        self.at += 1;
        let character = match self.peek() {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                self.at += 1;
                return self.code_point(begin);
            }
            _ => return Err(Fault::new(begin, "an unknown escape")),
        };
        self.at += 1;
        Ok(character)
    }

    /// Parses the digits after `\u`, and the second half of a surrogate pair.
    fn code_point(&mut self, begin: usize) -> Result<char, Fault> {
        const LONE: &str = "half of a surrogate pair, which is not a character";
        let first = self.hex(begin)?;
        let code = match first {
            0 => return Err(Fault::new(begin, "U+0000, which PostgreSQL cannot store")),
            0xd800..=0xdbff => {
                if !(self.take(b'\\') && self.take(b'u')) {
                    return Err(Fault::new(begin, LONE));
                }
                let second = self.hex(begin)?;
                if !(0xdc00..=0xdfff).contains(&second) {
                    return Err(Fault::new(begin, LONE));
                }
                0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00)
            }
            code => code,
        };
        char::from_u32(code).ok_or_else(|| Fault::new(begin, LONE))
    }

    fn hex(&mut self, begin: usize) -> Result<u32, Fault> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4).unwrap_or_default();
        if digits.len() < 4 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(Fault::new(begin, "expected four hexadecimal digits after \\u"));
        }
        self.at += 4;
        let nibble = |digit: &u8| char::from(*digit).to_digit(16).unwrap_or_default();
        Ok(digits.iter().fold(0, |code, digit| code << 4 | nibble(digit)))
    }

    fn number(&mut self) -> Result<Digits<'a>, Fault> {
        let begin = self.at;
        let digits =
            Digits::scan(&self.text[begin..]).map_err(|(at, reason)| Fault::new(begin + at, reason))?;
        self.at += digits.length();
        if !digits.is_in_range() {
            return Err(Fault::new(begin, "a number beyond PostgreSQL's numeric"));
        }
        self.written += digits.written_bytes();
        if self.written > MAX_WRITTEN_BYTES {
            let reason = format!("numbers that take more than {MAX_WRITTEN_BYTES} bytes when written out");
            return Err(Fault::new(begin, reason));
        }
        Ok(digits)
    }
}
