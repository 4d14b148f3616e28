//! A client that keeps its connection.

use super::super::super::crowd::Stop;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Longer than any stall that still ends with an answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// A stream whose reads end when the workload is asked to stop.
struct Patient<'a> {
    stream: TcpStream,
    stop: &'a Stop,
}

impl Read for Patient<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.stream.read(buffer) {
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
                        && Instant::now() < until
                        && !self.stop.is_asked() => {}
                result => return result,
            }
        }
    }
}

/// A connection that stays open, opened anew when the server closes it.
pub(super) struct Client<'a> {
    address: SocketAddr,
    stop: &'a Stop,
    stream: BufReader<Patient<'a>>,
    /// The last answer.
    pub(super) body: Vec<u8>,
}

impl<'a> Client<'a> {
    /// Connects.
    pub(super) fn new(address: SocketAddr, stop: &'a Stop) -> Result<Self, String> {
        Ok(Self {
            address,
            stop,
            stream: Self::connect(address, stop)?,
            body: Vec::new(),
        })
    }

    fn connect(address: SocketAddr, stop: &'a Stop) -> Result<BufReader<Patient<'a>>, String> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE);
        let stream = stream.map_err(|error| format!("connect to {address}: {error}"))?;
        stream
            .set_nodelay(true)
            .and_then(|()| stream.set_read_timeout(Some(Duration::from_millis(200))))
            .map_err(|error| format!("set up a connection: {error}"))?;
        Ok(BufReader::new(Patient { stream, stop }))
    }

    /// Asks for a page. Returns its length, or `None` when asked to stop.
    pub(super) fn get(&mut self, path: &str) -> Result<Option<usize>, String> {
        let mut answer = self.try_get(path);
        if answer.is_err() && !self.stop.is_asked() {
            // The server may close a connection that was idle.
            self.stream = Self::connect(self.address, self.stop)?;
            answer = self.try_get(path);
        }
        match answer {
            Ok(length) => Ok(Some(length)),
            Err(_) if self.stop.is_asked() => Ok(None),
            Err(error) => Err(format!("GET {path} from {}: {error}", self.address)),
        }
    }

    fn try_get(&mut self, path: &str) -> std::io::Result<usize> {
        let broken = |text: String| std::io::Error::other(text);
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        self.stream.get_mut().stream.write_all(request.as_bytes())?;
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let status = line
            .split_whitespace()
            .nth(1)
            .unwrap_or_default()
            .to_owned();
        let mut length = None;
        loop {
            let mut header = String::new();
            if self.stream.read_line(&mut header)? == 0 {
                return Err(broken("the connection was closed".to_owned()));
            }
            if header.trim_end().is_empty() {
                break;
            }
            if let Some((name, value)) = header.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse::<u64>().ok();
            }
        }
        if status != "200" {
            return Err(broken(format!("status {status}")));
        }
        let length = length.filter(|length| *length <= 1 << 30);
        let length = length.ok_or_else(|| broken("no length".to_owned()))?;
        self.body.resize(length as usize, 0);
        self.stream.read_exact(&mut self.body)?;
        Ok(self.body.len())
    }
}
