//! Space: block groups, what is free in them, what is pinned.

mod allocate;
pub mod balance_estimate;
pub mod block_group;
pub mod block_groups;
pub mod free_space_tree;
mod full_stripes;
pub mod gap;
pub mod kind;
pub mod ranges;
mod remake;
mod unused;
