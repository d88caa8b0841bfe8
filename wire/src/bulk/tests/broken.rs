//! Senders that break off, fall silent or lie.

use super::*;

/// A sender of our own making: `answer` gets each connection after its first request was read.
async fn raw_sender<F>(answer: impl Fn(TcpStream, usize) -> F + Send + 'static) -> PullFrom
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        for count in 0.. {
            let (mut stream, _) = listener.accept().await.unwrap();
            let asked = stream.read(&mut [0; 4096]).await;
            if asked.is_ok() {
                tokio::spawn(answer(stream, count));
            }
        }
    });
    PullFrom { endpoint, key: KEY, ticket: Bytes::from_static(b"t") }
}

fn whole_answer(part: &PartSpec, bytes: &[u8]) -> Vec<u8> {
    let (start, end) = (part.offset, part.offset + part.len);
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\ncontent-length: {}\r\ncontent-range: bytes {start}-{}/*\r\n\r\n",
        part.len,
        end - 1
    );
    [head.as_bytes(), &bytes[start as usize..end as usize]].concat()
}

#[tokio::test]
async fn a_body_cut_short_is_asked_for_again_and_then_given_up() {
    let bytes = pattern(10_000);
    let parts = parts_of(&bytes, 1, 1000);
    let good = whole_answer(&parts[0], &bytes);
    for breaks in [1, 2, 100] {
        let good = good.clone();
        let from = raw_sender(move |mut stream, count| {
            let answer = if count < breaks { good[..good.len() - 1].to_vec() } else { good.clone() };
            async move { stream.write_all(&answer).await.unwrap() }
        })
        .await;
        let pull = HttpPull::new(Security::Plain, PullLimits { connections: 1, ..PullLimits::default() });
        let outcomes = fetch(&pull, from, &parts[..1], STALL).await;
        if breaks < 3 {
            assert_whole(&outcomes, &parts, &bytes);
        } else {
            assert!(matches!(failures(&outcomes)[..], [PartError::Unreachable { .. }]));
        }
    }
}

#[tokio::test]
async fn a_silent_sender_is_stalled_in_head_and_body() {
    let bytes = pattern(10_000);
    let parts = parts_of(&bytes, 1, 1000);
    let good = whole_answer(&parts[0], &bytes);
    for sent in [0, 10, good.len() - 1] {
        let good = good.clone();
        let from = raw_sender(move |mut stream, _| {
            let answer = good[..sent].to_vec();
            async move {
                stream.write_all(&answer).await.unwrap();
                std::future::pending::<()>().await;
            }
        })
        .await;
        let pull = pull();
        let outcomes = fetch(&pull, from, &parts[..1], Duration::from_millis(50)).await;
        assert_eq!(failures(&outcomes), [PartError::Stalled]);
        assert_eq!(pull.counters().read().stalls, 1);
    }
}

#[tokio::test]
async fn hostile_answers_end_as_malformed() {
    let bytes = pattern(10_000);
    let parts = parts_of(&bytes, 1, 1000);
    let endless = "x".repeat(100_000);
    for answer in [
        "SSH-2.0-OpenSSH_9.6\r\n",
        "HTTP/1.1 206 OK\r\ncontent-length: 18446744073709551615\r\ncontent-range: bytes 0-999/*\r\n\r\n",
        "HTTP/1.1 206 OK\r\ncontent-length: 999\r\ncontent-range: bytes 0-998/*\r\n\r\n",
        "HTTP/1.1 206 OK\r\ncontent-length: 1000\r\ncontent-range: bytes 1-1000/*\r\n\r\n",
        "HTTP/1.1 206 OK\r\ncontent-length: 1000\r\n\r\n",
        "HTTP/1.1 206 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        &endless,
    ] {
        let answer = answer.to_owned();
        let from = raw_sender(move |mut stream, _| {
            let answer = answer.clone();
            async move {
                // The receiver may hang up before all of it is out.
                drop(stream.write_all(answer.as_bytes()).await);
                std::future::pending::<()>().await;
            }
        })
        .await;
        let outcomes = fetch(&pull(), from, &parts[..1], STALL).await;
        assert!(matches!(failures(&outcomes)[..], [PartError::Malformed { .. }]), "{outcomes:?}");
    }
}
