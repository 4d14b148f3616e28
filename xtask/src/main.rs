//! Checks of the source tree.
//!
//! `cargo run -p xtask -- edges` fails when a crate uses another that
//! ARCHITECTURE.md does not allow, when it is allowed one that it does not
//! use, and when a manifest names a crate that no source file uses.
//! `cargo run -p xtask -- circles [CRATE...]` shows which files of a crate use
//! each other in a circle, and fails where there should be none.

mod circles;
mod edges;
mod source;

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let result = match words.split_first() {
        Some((word, [])) if word == "edges" => edges::check(),
        Some((word, crates)) if word == "circles" => circles::check(crates),
        _ => Err("usage: xtask edges | xtask circles [CRATE...]".to_owned()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}
