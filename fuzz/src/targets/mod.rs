//! One module for each target; `run` takes the fuzzer's bytes and panics, or
//! is stopped, when something is wrong.

pub mod attributes;
pub mod canary;
pub mod chunks;
pub mod commands;
pub mod compression;
pub mod convert;
pub mod fuse_request;
pub mod image;
pub mod items;
pub mod mount_options;
pub mod node;
pub mod operations;
pub mod repair;
pub mod send_stream;
pub mod superblock;
pub mod survey;
