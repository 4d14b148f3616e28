//! What a balance moves, as the command line says it.

use crate::fail::{Failure, fail};
use butterfs_admin::balance::{Filter, Filters, Redundancy};
use clap::Args;
use serde::{Deserialize, Serialize};

/// Filters for each kind of space, and what they may do.
#[derive(Args, Clone, Debug, Deserialize, Serialize)]
pub struct Chosen {
    /// Data, all or what matches.
    #[arg(short, long, value_name = "FILTERS", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub data: Option<String>,
    /// Metadata (and system chunks), all or what matches.
    #[arg(short, long, value_name = "FILTERS", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub metadata: Option<String>,
    /// System chunks, all or what matches; needs -f.
    #[arg(short, long, value_name = "FILTERS", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub system: Option<String>,
    /// Allow a conversion that leaves a single copy of metadata that has more,
    /// and a balance of system chunks only.
    #[arg(short, long)]
    pub force: bool,
}

fn filter(text: Option<&String>) -> Result<Option<Filter>, Failure> {
    let text = text.map(|text| text.trim_start_matches('='));
    Ok(text.map(Filter::parse).transpose()?)
}

impl Chosen {
    pub fn filters(&self) -> Result<Filters, Failure> {
        let mut filters = Filters {
            data: filter(self.data.as_ref())?,
            metadata: filter(self.metadata.as_ref())?,
            system: filter(self.system.as_ref())?,
        };
        if filters == Filters::default() {
            return Ok(Filters::all());
        }
        if filters.system.is_some() && !self.force {
            return fail("system chunks go with the metadata; -f balances them by themselves");
        }
        if filters.system.is_none() {
            filters.system = filters.metadata;
        }
        Ok(filters)
    }

    pub const fn redundancy(&self) -> Redundancy {
        match self.force {
            true => Redundancy::MayShrink,
            false => Redundancy::Kept,
        }
    }
}
