//! The stream of one connection: it reports when a head begins and when nothing can be written.
//!
//! With HTTP/1.1 it hands the server library no byte beyond the head that the library reads, or beyond the
//! body of the request in progress ([`Framing`]). So the beginning of each head is known even if requests
//! share packets, and the target of each request is seen as it was sent: the library silently drops a
//! fragment from it. With HTTP/2 frames.rs detects fragments.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::connection::ConnectionActivity;
use crate::frames::Frames;
use crate::framing::{Framing, Scanned};

/// A stream that reports to the activity of its connection.
#[derive(Debug)]
pub(crate) struct Watched<S> {
    stream: S,
    activity: ConnectionActivity,
    is_stalled: bool,
    protocol: HttpProtocol,
    /// Bytes that were received but not handed on.
    kept: BytesMut,
}

#[derive(Debug)]
enum HttpProtocol {
    Http1(Framing),
    Http2(Frames),
}

impl<S> Watched<S> {
    /// Wraps an HTTP/1.1 stream.
    pub(crate) fn http1(stream: S, activity: ConnectionActivity, framing: Framing) -> Self {
        Self {
            stream,
            activity,
            is_stalled: false,
            protocol: HttpProtocol::Http1(framing),
            kept: BytesMut::new(),
        }
    }

    /// Wraps an HTTP/2 stream; beginnings of requests are not reported from its bytes.
    pub(crate) fn http2(stream: S, activity: ConnectionActivity, frames: Frames) -> Self {
        Self {
            stream,
            activity,
            is_stalled: false,
            protocol: HttpProtocol::Http2(frames),
            kept: BytesMut::new(),
        }
    }

    fn wrote(&mut self, outcome: Poll<std::io::Result<usize>>) -> Poll<std::io::Result<usize>> {
        if outcome.is_pending() != self.is_stalled {
            self.is_stalled = outcome.is_pending();
            self.activity.set_stalled(self.is_stalled);
        }
        outcome
    }

    /// Keeps those bytes from `before` on that must not be handed on yet. Returns true if any remain to hand
    /// on.
    fn hold_back(&mut self, cx: &Context<'_>, buf: &mut ReadBuf<'_>, before: usize) -> bool {
        let framing = match &mut self.protocol {
            HttpProtocol::Http1(framing) => framing,
            HttpProtocol::Http2(frames) => {
                frames.scan(&buf.filled()[before..]);
                return true;
            }
        };
        let Scanned { handed_on, head_began } = framing.scan(&buf.filled()[before..], cx.waker());
        if head_began {
            self.activity.head_began();
        }
        let end = before + handed_on;
        // Bytes that were kept earlier come after these.
        let mut kept = BytesMut::from(&buf.filled()[end..]);
        if !kept.is_empty() {
            kept.extend_from_slice(&self.kept);
            self.kept = kept;
        }
        buf.set_filled(end);
        handed_on > 0
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buf.filled().len();
        if self.kept.is_empty() {
            let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
            if !matches!(polled, Poll::Ready(Ok(()))) || buf.filled().len() == before {
                return polled;
            }
        } else {
            let length = self.kept.len().min(buf.remaining());
            buf.put_slice(&self.kept[..length]);
            self.kept.advance(length);
        }
        // If no byte can be handed on, the framing wakes the task when the server library has read the head.
        if self.hold_back(cx, buf, before) { Poll::Ready(Ok(())) } else { Poll::Pending }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.wrote(outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.wrote(outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
