//! Tools that call sync(2), which waits for every file system of the machine. A
//! busy or broken file system elsewhere would be measured with this one, or
//! stop the tool for ever.

use super::super::Ground;
use super::super::parameters::Given;
use super::super::program::{command, run};
use std::fs;
use std::process::Command;

/// A parameter of tools that call sync(2).
pub(super) const PARAMETER: (&str, &str, &str) = (
    "sync-scope",
    "file-system",
    "what the tool's sync(2) waits for: file-system (the measured one; needs a C compiler) or machine",
);

/// Replaces a libc function of the tool.
const SOURCE: &str = "\
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
void sync(void)
{
    const char *directory = getenv(\"LAB_SYNC_DIRECTORY\");
    int file = directory ? open(directory, O_RDONLY | O_DIRECTORY) : -1;
    if (file < 0 || syncfs(file) != 0)
        abort();
    close(file);
}
";

/// Whether sync(2) stays as it is.
pub(super) fn is_machine(given: &Given<'_>) -> Result<bool, String> {
    Ok(given.choice(PARAMETER.0, &["file-system", "machine"])? == "machine")
}

/// Makes the tool sync only the measured file system.
pub(super) fn narrow(tool: &mut Command, ground: &dyn Ground) -> Result<(), String> {
    let source = ground.scratch().join("sync.c");
    let library = ground.scratch().join("sync.so");
    fs::write(&source, SOURCE).map_err(|e| format!("write {}: {e}", source.display()))?;
    let mut compiler = command("cc", None)?;
    compiler
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&library)
        .arg(&source);
    run("cc", &mut compiler, ground)?;
    tool.env("LD_PRELOAD", &library);
    tool.env("LAB_SYNC_DIRECTORY", ground.directory());
    Ok(())
}

/// What a reader must know.
pub(super) const MACHINE: &str =
    "the tool calls sync(2), which waits for every file system of the machine";
/// The same for the other choice.
pub(super) const FILE_SYSTEM: &str =
    "the tool's sync(2) is made a syncfs(2) of the measured file system";
