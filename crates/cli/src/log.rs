//! Where events go: standard error in the foreground, a file or syslog in the
//! background. `BUTTERFS_LOG` sets the level (error, warn, info, debug,
//! trace).

use crate::fail::{Context, Failure};
use crate::output::Notes;
use std::io::{self, IsTerminal, Write};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use tracing::level_filters::LevelFilter;

/// Where events go.
#[derive(Clone, Copy, Debug)]
pub enum Target<'a> {
    /// Standard error.
    Terminal,
    /// A file, at its end.
    File(&'a Path),
    /// The system's log, if there is one.
    Syslog,
}

fn level() -> LevelFilter {
    let asked = std::env::var("BUTTERFS_LOG").ok();
    asked
        .and_then(|level| level.parse().ok())
        .unwrap_or(LevelFilter::WARN)
}

/// Starts logging, of panics too; a second call changes nothing.
pub fn start(target: Target<'_>) -> Result<(), Failure> {
    let builder = tracing_subscriber::fmt()
        .with_max_level(level())
        .with_target(false);
    // It fails only if logging was started before.
    let _ = match target {
        Target::Terminal => builder
            .with_ansi(io::stderr().is_terminal())
            .without_time()
            .with_writer(|| Notes)
            .try_init(),
        Target::File(path) => {
            let file = std::fs::File::options()
                .create(true)
                .append(true)
                .open(path);
            let file = file.context(path.display())?;
            builder.with_ansi(false).with_writer(file).try_init()
        }
        Target::Syslog => builder
            .with_ansi(false)
            .without_time()
            .with_writer(Syslog::default)
            .try_init(),
    };
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string);
        let place = place.unwrap_or_else(|| "an unknown place".to_owned());
        let payload = panic.payload_as_str().unwrap_or("no message");
        tracing::error!("internal error, please report it: panicked at {place}: {payload}");
    }));
    Ok(())
}

/// One event on its way to /dev/log.
#[derive(Default)]
struct Syslog;

impl Write for Syslog {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        // Facility daemon, severity warning.
        let mut message = format!("<28>butterfs[{}]: ", std::process::id()).into_bytes();
        message.extend_from_slice(text.trim_ascii_end());
        // A machine without a system log has no place for it.
        if let Ok(socket) = UnixDatagram::unbound() {
            let _ = socket.send_to(&message, "/dev/log");
        }
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
