use intwain_passes::{hardware::Catalogue, place::*};
use std::time::Instant;
fn main() {
    let text = std::fs::read_to_string(std::env::args().nth(1).unwrap()).unwrap();
    let g = intwain_ir::text::parse(&text).unwrap();
    let machine = Catalogue::built_in().get(&std::env::args().nth(2).unwrap()).unwrap();
    for _ in 0..3 {
        let start = Instant::now();
        let planner = Planner::new(&g, &machine, Options::default());
        let t0 = start.elapsed();
        let plan = planner.plan().unwrap();
        println!("{} nodes new {t0:?} total {:?} {}", g.nodes.len(), start.elapsed(), plan.strategy);
    }
}
