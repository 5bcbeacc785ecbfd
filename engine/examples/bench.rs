//! Measures this machine and prints the table, or with `--json` the object that scripts read.
//!
//! `cargo run --release -p engine --example bench -- [--quick] [--json] [DIR]`; for a profiler, one point for
//! so many seconds: `bench runs WIDTH SECONDS [DIR]`, `bench store WIDTH SECONDS [DIR]`.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use engine::bench;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (flags, words): (Vec<_>, Vec<_>) = words.iter().partition(|word| word.starts_with("--"));
    let has = |flag: &str| flags.iter().any(|given| *given == flag);
    let dir_of = |word: Option<&&String>| word.map_or_else(std::env::temp_dir, PathBuf::from);
    match words.as_slice() {
        [what, width, seconds, rest @ ..] => {
            let (dir, width) = (dir_of(rest.first()), width.parse()?);
            let time = Duration::from_secs(seconds.parse()?);
            match what.as_str() {
                "runs" => println!("{:#?}", bench::runs_point(&dir, width, time).await?),
                "store" => println!("{:#?}", bench::store_point(&dir, width, time).await?),
                other => return Err(format!("no point `{other}`; there are: runs, store").into()),
            }
        }
        rest => {
            let report =
                bench::bench(&dir_of(rest.first()), has("--quick"), |step| eprintln!("{step}")).await?;
            if has("--json") {
                println!("{}", report.to_json());
            } else {
                print!("{report}");
            }
        }
    }
    Ok(())
}
