//! x
use butterfs_convert::*;
use butterfs_device::*;
use std::sync::Arc;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let d: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(a[2].as_ref(), Access::ReadWrite).unwrap());
    let t = std::time::Instant::now();
    match &a[1][..] {
        "c" => println!("{:?}", convert(&d, &Options::default(), &Unwatched)),
        _ => println!("{:?}", rollback(&d, &Unwatched)),
    }
    println!("{:?}", t.elapsed());
}
