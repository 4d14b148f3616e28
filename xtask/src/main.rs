//! Checks of the source tree.
//!
//! `cargo run -p xtask -- edges` fails if a crate uses another one that
//! ARCHITECTURE.md does not allow, if it is allowed one that it does not use,
//! or if a manifest names a crate that no source file uses. `cargo run -p xtask
//! -- circles [CRATE...]` shows which files of a crate use each other in a
//! circle, and fails if there are circles where there should be none. `cargo run
//! -p xtask -- paths` fails if pages or comments name files that are not there.

mod circles;
mod edges;
mod paths;
mod source;

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let result = match words.split_first() {
        Some((word, [])) if word == "edges" => edges::check(),
        Some((word, [])) if word == "paths" => paths::check(),
        Some((word, crates)) if word == "circles" => circles::check(crates),
        _ => Err("usage: xtask edges | xtask circles [CRATE...] | xtask paths".to_owned()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}
