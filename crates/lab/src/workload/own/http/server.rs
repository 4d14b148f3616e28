//! A small server of static files on the loopback interface.

use super::super::super::files::{Caching, Files};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A small server of static files: a thread for each connection.
pub(super) struct OwnServer {
    /// Where it listens.
    pub(super) address: SocketAddr,
    ends: Arc<AtomicBool>,
    acceptor: Option<std::thread::JoinHandle<()>>,
}

impl OwnServer {
    /// Serves files.
    pub(super) fn start(files: Arc<dyn Files>) -> Result<Self, String> {
        let told = |error| format!("listen on the loopback interface: {error}");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(told)?;
        let address = listener.local_addr().map_err(told)?;
        let ends = Arc::new(AtomicBool::new(false));
        let has_ended = Arc::clone(&ends);
        let acceptor = std::thread::spawn(move || {
            std::thread::scope(|scope| {
                for stream in listener.incoming().flatten() {
                    if has_ended.load(Ordering::Acquire) {
                        break;
                    }
                    let (files, has_ended) = (files.as_ref(), has_ended.as_ref());
                    scope.spawn(move || serve(stream, files, has_ended));
                }
            });
        });
        Ok(Self {
            address,
            ends,
            acceptor: Some(acceptor),
        })
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        // Wakes the acceptor.
        let _ = TcpStream::connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

fn serve(stream: TcpStream, files: &dyn Files, has_ended: &AtomicBool) {
    let _ = stream.set_nodelay(true);
    let _ = stream.set_read_timeout(Some(Duration::from_millis(200)));
    let mut stream = BufReader::new(stream);
    let mut request = String::new();
    while !has_ended.load(Ordering::Acquire) {
        match stream.read_line(&mut request) {
            Ok(0) => return,
            Ok(_) if request.ends_with("\r\n\r\n") => {
                let path = request.split_whitespace().nth(1).unwrap_or_default();
                let answer = answer(path.trim_start_matches('/'), files);
                if stream.get_mut().write_all(&answer).is_err() {
                    return;
                }
                request.clear();
            }
            Ok(_) if request.len() < 64 << 10 => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            _ => return,
        }
    }
}

fn answer(path: &str, files: &dyn Files) -> Vec<u8> {
    let read = || -> Result<Vec<u8>, String> {
        let length = usize::try_from(files.stat(path)?).map_err(|_| "too large")?;
        let mut body = vec![0; length];
        let read = files.open(path, Caching::Cached)?.read_at(0, &mut body)?;
        body.truncate(read);
        Ok(body)
    };
    let (status, body) = match read() {
        Ok(body) => ("200 OK", body),
        Err(text) => ("404 Not Found", text.into_bytes()),
    };
    let mut answer = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    answer.extend(body);
    answer
}
