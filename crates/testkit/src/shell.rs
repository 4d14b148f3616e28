//! Scripts of bash on a mounted tree.

use std::path::Path;
use std::process::Command;

/// `sync` without a name means the file system of the script's directory. Other
/// file systems of this machine may be busy or stuck, and do not matter to a
/// test.
const PRELUDE: &str =
    "sync() { if [ $# = 0 ]; then command sync -f .; else command sync \"$@\"; fi; }\n";

/// Runs a script in `directory`. It ends at the first command that fails, or at
/// a variable that is not set.
///
/// # Panics
/// When the script fails, with what it printed.
pub fn run_script(directory: &Path, script: &str) {
    let out = Command::new("bash")
        .args(["-euc", &format!("{PRELUDE}{script}")])
        .current_dir(directory)
        .output()
        .expect("bash runs");
    let printed = [out.stdout, out.stderr].concat();
    let printed = String::from_utf8_lossy(&printed);
    assert!(out.status.success(), "{script}: {printed}");
}
