//! The figures in the project's pages: each stands in a block with its command, what was measured is within the bounds, and
//! README repeats nothing that the pages do not say.
//!
//! Owns the bounds. Blocks that a test counts are compared where they are counted.

use tests::documented::{Block, PAGES, assert_documented, block, blocks, root};
use tests::measured::{gates, number};

const DURABILITY: &str = "docs/durability.md";
const PERFORMANCE: &str = "docs/performance.md";

/// What must hold of measurements: the block, what was measured, and its bound.
const BOUNDS: [(&str, &str, &str); 12] = [
    ("hour 48", "p50 as a ratio to the raw append", "at most 1.25"),
    ("hour 48", "p99 as a ratio to the raw append", "at most 1.25"),
    ("hour 48", "resident memory", "at most 200"),
    ("hour 48", "cold resume", "less than 1000"),
    ("hour 48", "bytes on the disk for each byte of content", "at most 2"),
    ("recovery", "all jobs accepted", "less than 500"),
    ("recovery", "all accounted for after a kill", "less than 2000"),
    ("recovery", "all accounted for after a power cut", "less than 5000"),
    ("recovery", "sled rebuilt", "less than 3000"),
    ("recovery", "a further restart changes nothing", ""),
    ("retention", "part of their bytes given back", "at least 0.9"),
    ("retention", "longest commit beside the purge, over the longest alone", "at most 50"),
];

fn performance(name: &str) -> Block {
    block(PERFORMANCE, name)
}

/// The cells of a table's rows, without its head.
fn rows(table: &str) -> Vec<Vec<&str>> {
    table.lines().skip(2).map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

#[test]
fn what_was_measured_is_within_its_bounds() {
    let names = ["hour 48", "recovery", "retention"];
    let found: Vec<(&str, String, String, bool)> = names
        .into_iter()
        .flat_map(|name| gates(&performance(name).text).into_iter().map(move |gate| (name, gate)))
        .map(|(name, gate)| (name, gate.what, gate.bound, gate.holds))
        .collect();
    let wanted = BOUNDS.map(|(name, what, bound)| (name, what.to_owned(), bound.to_owned(), true));
    assert_eq!(found, wanted);
}

#[test]
fn no_image_of_a_real_disk_was_wrong_and_each_control_lost_something() {
    let table = block(DURABILITY, "real disks").text;
    let systems = ["ext4", "xfs", "btrfs"];
    let writers =
        ["the store", "the store, its syncs not heard", "a file, with fdatasync", "a file, without"];
    let expected: Vec<(&str, &str, bool)> = systems
        .into_iter()
        .flat_map(|system| writers.into_iter().map(move |writer| (system, writer)))
        .map(|(system, writer)| (system, writer, ["the store", "a file, with fdatasync"].contains(&writer)))
        .collect();
    let found: Vec<_> = rows(&table).iter().map(|row| (row[0], row[1], row[7..] == ["0", "0"])).collect();
    assert_eq!(found, expected);
}

#[test]
fn each_block_names_a_command_that_is_there() {
    let is_there = |path: &str| root().join(path).exists();
    for (page, block) in
        PAGES.iter().flat_map(|page| blocks(page).into_iter().map(move |block| (page, block)))
    {
        let words: Vec<&str> = block.command.split(' ').skip_while(|word| word.contains('=')).collect();
        let after = |option: &str| {
            let at = words.iter().position(|word| *word == option)?;
            words.get(at + 1).copied()
        };
        let package = after("-p").unwrap_or_default();
        let is_known = match (words[0], words.get(1), after("--test"), after("--bin")) {
            ("cargo", Some(&"test"), Some(test), _) => {
                is_there(&format!("{package}/tests/{test}.rs"))
                    || is_there(&format!("{package}/tests/{test}/main.rs"))
            }
            ("cargo", Some(&"test"), None, _) => {
                is_there(&format!("{package}/src/tests/{}.rs", words.last().unwrap()))
            }
            ("cargo", Some(&"run"), _, Some(program)) => {
                is_there(&format!("{package}/src/bin/{program}.rs"))
                    || is_there(&format!("{package}/src/bin/{program}/main.rs"))
            }
            ("cargo", Some(&"run"), None, None) => {
                is_there(&format!("{package}/src/command/{}.rs", after("--").unwrap_or_default()))
            }
            (script, ..) => is_there(script),
        };
        assert!(is_known, "{page}: {}: nobody finds `{}`", block.name, block.command);
    }
}

#[test]
fn each_documented_mutation_is_one_of_the_script_and_was_noticed() {
    let script = std::fs::read_to_string(root().join("tests/mutations.sh")).unwrap();
    let mut broken = script.lines().filter_map(|line| line.strip_prefix("mutation '")?.split('\'').next());
    let table = block(DURABILITY, "mutations").text;
    // In the order of the script.
    let is_unknown = |row: &Vec<&str>| !broken.any(|name| name == row[0]);
    assert_eq!(rows(&table).into_iter().find(is_unknown), None);
    assert!(!table.contains("**nothing**"), "{table}");
}

/// A row of the table in README: the claim, what was found, and the command that says so.
fn row(claim: &str, found: String, block: &Block) -> String {
    format!("| {claim} | {found} | `{}` |\n", block.command)
}

#[test]
fn readme_says_what_the_pages_say() {
    let [images, cuts, disks] =
        ["images of a night", "cuts", "real disks"].map(|name| block(DURABILITY, name));
    let [store, engine] =
        ["faults under the store", "faults under the engine"].map(|name| block(DURABILITY, name));
    let [recovery, waiting, long, retention] =
        ["recovery", "waiting", "hour 48", "retention"].map(performance);
    let figure = |block: &Block, before: &str, after: &str| {
        let found = number(&block.text, before, after);
        found
            .unwrap_or_else(|| panic!("{}: no figure between {before:?} and {after:?}", block.name))
            .to_string()
    };
    let image = |before, after| figure(&images, before, after);
    let all = rows(&cuts.text).pop().unwrap();
    let count = |row: &[&str], nth: usize| row[nth].parse::<u64>().unwrap();
    let of_disks: Vec<_> = rows(&disks.text).into_iter().filter(|row| row[1] == "the store").collect();
    let sum = |nth| of_disks.iter().map(|row| count(row, nth)).sum::<u64>();
    let took = |before| figure(&recovery, before, " ms");
    let last =
        long.text.lines().rfind(|line| line.starts_with(' ')).unwrap().split_whitespace().next().unwrap();
    let longest = |commits: &str| {
        let line = retention.text.lines().find(|line| line.starts_with(commits)).unwrap();
        line.split_whitespace().next_back().unwrap()
    };
    let table = [
        "| what | found | by |\n|---|---|---|\n".to_owned(),
        row(
            "power cuts on a simulated disk, between any two of its operations",
            format!(
                "{} images of {} moments, {} wrong",
                image(" moments, ", " images"),
                image(" frames, ", " moments"),
                image("three times, ", " went wrong")
            ),
            &images,
        ),
        row(
            "deaths of process or machine at every act of the engine",
            format!("{} cuts, {} wrong", count(&all, 1) + count(&all, 2), all[3]),
            &cuts,
        ),
        row(
            "power cuts under real ext4, xfs and btrfs",
            format!("{} images of {} cuts, {} wrong", sum(6), sum(5), sum(7) + sum(8)),
            &disks,
        ),
        row(
            "disks that fail, under the engine",
            format!(
                "{} faults, {} claims broken",
                figure(&engine, "", " faults"),
                figure(&engine, "scenarios, ", " claims")
            ),
            &engine,
        ),
        row(
            "disks that fail, under the store",
            format!(
                "{} faults, {} claims broken",
                figure(&store, "", " faults"),
                figure(&store, "ways, ", " claims")
            ),
            &store,
        ),
        row(
            "10,000 jobs in flight, all accounted for",
            format!(
                "{} ms after a kill, {} ms after a power cut",
                took("after a kill: "),
                took("after a power cut: ")
            ),
            &recovery,
        ),
        row("a run that waits for its model", format!("{} bytes", figure(&waiting, "", " bytes")), &waiting),
        row(
            &format!("one run of {last} transitions"),
            format!(
                "a commit costs {} times what it did at 1,000; {} MB resident; resumed cold in {} ms; {} bytes on disk for each byte of content",
                figure(&long, "p50 as a ratio to the raw append: ", " of that"),
                figure(&long, "resident memory: ", " MB"),
                figure(&long, "cold resume: ", " ms"),
                figure(&long, "each byte of content: ", " (at most"),
            ),
            &long,
        ),
        row(
            "nine runs in ten purged beside one that goes on",
            format!(
                "{} % of their bytes back; of the other's commits the longest took {} ms beside the purge, {} ms alone",
                100.0 * number(&retention.text, "given back: ", " (at least").unwrap(),
                longest("beside"),
                longest("alone")
            ),
            &retention,
        ),
    ];
    assert_documented("README.md", "proof", &table.concat());
}
