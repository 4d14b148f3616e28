//! Real tools: their command lines, and parsers of what they print.

pub(super) mod bonnie;
pub(super) mod dbench;
pub(super) mod fio;
pub(super) mod fs_mark;
pub(super) mod oltp;
pub(super) mod pgbench;
pub(super) mod postmark;
mod sync_scope;
mod sysbench;
pub(super) mod sysbench_files;
pub(super) mod web;

/// What a reader must know about a tool whose data are zeros or repeat: file
/// systems that compress or find equal blocks look faster than they are.
pub(super) fn writes_zeros(tool: &str, honest: &str) -> String {
    format!(
        "the tool writes zeros or nearly: {tool}'s data compress to almost nothing; \
         the workload \"{honest}\" does the like with honest data"
    )
}
