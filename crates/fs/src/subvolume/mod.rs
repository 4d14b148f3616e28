//! Subvolumes and snapshots.

pub mod compare;
pub mod content;
pub mod diff;
pub mod du;
pub mod find_new;
pub mod history;
pub mod list;
pub mod member_sets;
pub mod paths;
pub mod sweep;
