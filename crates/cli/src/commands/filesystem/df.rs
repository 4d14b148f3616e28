//! `butterfs filesystem df`: space by kind and profile.

use super::target::Target;
use crate::facts;
use crate::fail::Done;
use crate::place::json;
use crate::tools_json::{self, Format};
use butterfs_server::KindFacts;
use clap::Args;
use serde::Serialize;

/// What is shown, and how.
#[derive(Args, Debug)]
pub struct Df {
    /// The form of output: text, or JSON as the Btrfs tools have it.
    #[arg(long, value_name = "TYPE", conflicts_with = "json")]
    format: Option<Format>,
    #[command(flatten)]
    target: Target,
}

/// A kind of space, as the Btrfs tools have it in JSON.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct ToolsRow {
    bg_type: String,
    bg_profile: String,
    total: u64,
    used: u64,
}

impl ToolsRow {
    fn new(kind: &str, profile: &str, total: u64, used: u64) -> Self {
        Self {
            bg_type: kind.to_owned(),
            bg_profile: profile.to_owned(),
            total,
            used,
        }
    }
}

impl Df {
    /// Runs it.
    pub fn run(&self) -> Done {
        let target = &self.target;
        let facts = facts::at(&target.volume)?;
        facts::note_mixed_profiles(&facts);
        if target.json {
            return json(&facts.kinds);
        }
        if self.format == Some(Format::Json) {
            let row = |of: &KindFacts| ToolsRow::new(&of.kind, &of.profile, of.total, of.used);
            let mut rows: Vec<ToolsRow> = facts.kinds.iter().map(row).collect();
            let reserve = facts
                .reserve
                .map(|(total, used)| ToolsRow::new("GlobalReserve", "single", total, used));
            rows.extend(reserve);
            return tools_json::print("filesystem-df", &rows);
        }
        for kind in &facts.kinds {
            say!(
                "{}, {}: total={}, used={}",
                kind.kind,
                kind.profile,
                target.size(kind.total),
                target.size(kind.used)
            );
        }
        if let Some((total, used)) = facts.reserve {
            let (total, used) = (target.size(total), target.size(used));
            say!("GlobalReserve, single: total={total}, used={used}");
        }
        Ok(())
    }
}
