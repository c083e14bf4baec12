// How search ranks what it finds: pages that teach come before the entries of the reference, and those before chapters
const teaching = [[/^start\//, 30], [/^howto\//, 25], [/^(concepts|tutorials|migration|project)\//, 12]];
var Scorer = {
  score: ([docname, title, anchor, descr, score]) =>
    score + (anchor ? 0 : (teaching.find(([folder]) => folder.test(docname)) || [0, 0])[1]),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: {0: 15, 1: 5, 2: -5},
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};

// A single letter says nothing, and its partial matches are everywhere: "Ctrl-C" is a search for "ctrl"
var splitQuery = query => query.split(/[^\p{L}\p{N}_]+/u).filter(word => word.length > 1);
