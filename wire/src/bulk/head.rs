//! Heads of HTTP/1.1 requests and answers, as far as a pull needs them.

use std::fmt::Write as _;
use std::time::Duration;

use super::PartError;
use super::fetch::Job;

/// Longest head that is read.
pub(super) const HEAD_LIMIT: usize = 8 << 10;
const HEADERS: usize = 32;

/// What an answer's head says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Bytes of the head itself.
    pub(super) len: usize,
    pub(super) status: u16,
    pub(super) body: u64,
    /// First byte of the range, where there is one.
    pub(super) start: Option<u64>,
    pub(super) retry: Option<Duration>,
    pub(super) keep_alive: bool,
}

/// The range GET of one part.
pub(super) fn request(job: &Job) -> String {
    let (from, spec) = (&job.fetch.from, &job.spec);
    let mut text = String::with_capacity(384);
    // Writing to a String cannot fail. The range is inclusive, and no part is empty.
    let _ = write!(
        text,
        "GET /v1/segments/{} HTTP/1.1\r\nHost: hypic-agent\r\nRange: bytes={}-{}\r\nAuthorization: Bearer {}\r\n\r\n",
        hex::encode(from.key.0),
        spec.offset,
        spec.offset + spec.len - 1,
        hex::encode(&from.ticket),
    );
    text
}

/// The head at the start of `bytes`; `None` while it is not complete.
pub(super) fn read(bytes: &[u8]) -> Result<Option<Head>, PartError> {
    let malformed = |why| PartError::Malformed { why };
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut answer = httparse::Response::new(&mut headers);
    let len = match answer.parse(bytes) {
        Ok(httparse::Status::Complete(len)) => len,
        Ok(httparse::Status::Partial) if bytes.len() < HEAD_LIMIT => return Ok(None),
        Ok(httparse::Status::Partial) => return Err(malformed("head is too long")),
        Err(_) => return Err(malformed("head does not parse")),
    };
    let status = answer.code.ok_or(malformed("no status"))?;
    let (mut body, mut start, mut retry) = (None, None, None);
    let mut keep_alive = answer.version == Some(1);
    for header in answer.headers.iter() {
        let value = std::str::from_utf8(header.value).map_err(|_| malformed("header is not text"))?.trim();
        let name = header.name;
        if name.eq_ignore_ascii_case("content-length") {
            // Two lengths, or a sign, are how answers are smuggled into one another.
            if body.is_some() || !value.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(malformed("content-length"));
            }
            body = Some(value.parse().map_err(|_| malformed("content-length"))?);
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            return Err(malformed("transfer-encoding"));
        } else if name.eq_ignore_ascii_case("content-range") {
            let range = value.strip_prefix("bytes ").and_then(|range| range.split_once('-'));
            let (first, _) = range.ok_or(malformed("content-range"))?;
            start = Some(first.parse().map_err(|_| malformed("content-range"))?);
        } else if name.eq_ignore_ascii_case("retry-after") {
            retry = value.parse().ok().map(Duration::from_secs);
        } else if name.eq_ignore_ascii_case("connection") {
            keep_alive &= !value.eq_ignore_ascii_case("close");
        }
    }
    let body = body.ok_or(malformed("no content-length"))?;
    Ok(Some(Head { len, status, body, start, retry, keep_alive }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_good_head_reads_whole_and_waits_for_its_end() {
        let text =
            b"HTTP/1.1 206 Partial Content\r\ncontent-length: 12\r\nContent-Range: bytes 5-16/*\r\n\r\nbody";
        let head = read(text).unwrap().unwrap();
        let expected = Head {
            len: text.len() - 4,
            status: 206,
            body: 12,
            start: Some(5),
            retry: None,
            keep_alive: true,
        };
        assert_eq!(head, expected);
        for end in 0..text.len() - 4 {
            assert_eq!(read(&text[..end]).unwrap(), None, "{end}");
        }
    }

    #[test]
    fn hostile_heads_are_refused() {
        let long = format!("HTTP/1.1 206 OK\r\nx: {}", "a".repeat(HEAD_LIMIT));
        let many = format!("HTTP/1.1 206 OK\r\n{}\r\n", "a: b\r\n".repeat(HEADERS + 1));
        for text in [
            "SSH-2.0-OpenSSH_9.6\r\n",
            "HTTP/1.1 206 OK\r\n\r\n",
            "HTTP/1.1 206 OK\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\n",
            "HTTP/1.1 206 OK\r\ncontent-length: +1\r\n\r\n",
            "HTTP/1.1 206 OK\r\ncontent-length: -1\r\n\r\n",
            "HTTP/1.1 206 OK\r\ncontent-length: 99999999999999999999999\r\n\r\n",
            "HTTP/1.1 206 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/1.1 206 OK\r\ncontent-length: 1\r\ncontent-range: bytes x-y/z\r\n\r\n",
            "HTTP/1.1 206 OK\r\ncontent-length: 1\r\nx: \u{e9}\u{0}\r\n\r\n",
            &long,
            &many,
        ] {
            assert!(matches!(read(text.as_bytes()), Err(PartError::Malformed { .. })), "{text:.60}");
        }
    }
}
