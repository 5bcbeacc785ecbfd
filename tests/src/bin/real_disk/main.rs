//! Cuts the power under real file systems: `cargo run -p tests --bin real_disk -- [ext4|xfs|btrfs|all] [--images N]`.
//!
//! Owns the command line, what must be at hand, and the table. It ends with 1 if anything acknowledged was lost or an
//! image did not mount, or if a control that must lose something did not.

mod child;
mod record;
mod rig;

use std::path::Path;
use std::process::{Command, ExitCode};

use child::Writer;
use rig::{FileSystem, Outcome};

/// Images of each file system, unless said otherwise.
const IMAGES: usize = 400;
/// Says that this process has a mount namespace of its own.
const APART: &str = "apart";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["write", writer, dir, groups] => as_child(writer, |writer| {
            writer.write(Path::new(dir), groups.parse().map_err(|error| format!("{groups}: {error}"))?)
        }),
        ["check", writer, dir, ref durable @ ..] => as_child(writer, |writer| {
            let durable: Result<Vec<u64>, _> = durable.iter().map(|count| count.parse()).collect();
            writer.check(Path::new(dir), &durable.map_err(|error| error.to_string())?)
        }),
        [APART, ref words @ ..] => wanted(words).and_then(|(names, images)| cut_all(&names, images)),
        _ => wanted(&words).and_then(|_| go_apart(&words)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn as_child(writer: &str, act: impl FnOnce(Writer) -> Result<(), String>) -> Result<(), String> {
    act(Writer::named(writer).ok_or_else(|| format!("no writer is named {writer}"))?)
}

/// The file systems and the number of images that the command line asks for.
fn wanted(words: &[&str]) -> Result<(Vec<String>, usize), String> {
    const USAGE: &str = "real_disk [ext4|xfs|btrfs|all]... [--images N]";
    let (mut names, mut images) = (Vec::new(), IMAGES);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match *word {
            "all" => {}
            "--images" => {
                images = words.next().and_then(|count| count.parse().ok()).ok_or(USAGE)?;
            }
            name if rig::ALL.iter().any(|system| system.name == name) => names.push(name.to_owned()),
            _ => return Err(USAGE.to_owned()),
        }
    }
    Ok((names, images))
}

/// Starts this program again with a mount namespace of its own, or says why that cannot be.
fn go_apart(words: &[&str]) -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root may mount");
        return Ok(());
    }
    for needed in [tests::fuse::DEVICE, "/dev/loop-control"] {
        if !Path::new(needed).exists() {
            println!("skipped: there is no {needed}");
            return Ok(());
        }
    }
    if let Err(error) = rig::order("unshare", &["--mount", "true"]) {
        println!("skipped: {error}");
        return Ok(());
    }
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut apart = Command::new("unshare");
    apart.args(["--mount", "--propagation", "private"]).arg(program).arg(APART).args(words);
    let status = apart.status().map_err(|error| format!("unshare: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("not everything held ({status})")) }
}

fn cut_all(names: &[String], images: usize) -> Result<(), String> {
    if let Err(error) = rig::prepare() {
        println!("skipped: {error}");
        return Ok(());
    }
    println!(
        "| file system | writer | acknowledged | writes | syncs | cuts | images | not mounted | wrong |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut broken = Vec::new();
    for system in &rig::ALL {
        if !names.is_empty() && !names.iter().any(|name| name == system.name) {
            continue;
        }
        if let Some(reason) = system.is_missing() {
            println!("| {} | skipped: {reason} | | | | | | | |", system.name);
            continue;
        }
        for writer in Writer::ALL {
            broken.extend(cut(system, writer, images)?);
        }
    }
    if broken.is_empty() { Ok(()) } else { Err(broken.join("\n")) }
}

/// Prints a row of the table; what should not be in it.
fn cut(system: &FileSystem, writer: Writer, images: usize) -> Result<Option<String>, String> {
    // The controls only show that the rig tells right from wrong.
    let images = if writer == Writer::Store { images } else { images.div_ceil(4) };
    let outcome = system.try_writer(writer, images)?;
    let Outcome { acknowledged, writes, syncs, cuts, images, unmounted, wrong, refusal, loss } = outcome;
    let (name, by) = (system.name, writer.title());
    println!(
        "| {name} | {by} | {acknowledged} | {writes} | {syncs} | {cuts} | {images} | {unmounted} | {wrong} |"
    );
    // A file system that has lost itself is none of the store's promises, unless its disk has kept its own.
    let told = loss.or(refusal.filter(|_| !writer.must_lose()));
    Ok(match (told, writer.must_lose()) {
        (Some(_), true) | (None, false) => None,
        (Some(loss), false) => Some(format!("{name}, {by}: {loss}")),
        (None, true) => Some(format!("{name}, {by}: nothing was lost, so this rig shows nothing")),
    })
}
