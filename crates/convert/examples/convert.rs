//! Converts an image, or gives the old file system back (`-r`), and says how
//! long that took. `scripts/convert-speed` compares it with btrfs-convert.

use butterfs_convert::{Options, Unwatched, convert, rollback};
use butterfs_device::{Access, BlockDevice, FileDevice};
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (back, image) = match &words[..] {
        [image] => (false, image),
        [option, image] if option == "-r" => (true, image),
        _ => return Err("usage: convert [-r] IMAGE".into()),
    };
    let device = FileDevice::open(Path::new(image), Access::ReadWrite)?;
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    let begun = Instant::now();
    match back {
        true => println!("{:?}", rollback(&device, &Unwatched)?),
        false => println!("{:?}", convert(&device, &Options::default(), &Unwatched)?),
    }
    println!("{:.3} s", begun.elapsed().as_secs_f64());
    Ok(())
}
