#include "tools/bench_verbs.h"

/* Shakespeare, and out of copyright. */
const char bench_text[] =
    "Shall I compare thee to a summer's day? Thou art more lovely and more temperate: Rough winds "
    "do shake the darling buds of May, And summer's lease hath all too short a date: Sometime too "
    "hot the eye of heaven shines, And often is his gold complexion dimm'd; And every fair from "
    "fair sometime declines, By chance or nature's changing course untrimm'd; But thy eternal "
    "summer shall not fade Nor lose possession of that fair thou owest; Nor shall Death brag thou "
    "wander'st in his shade, When in eternal lines to time thou growest: So long as men can "
    "breathe or eyes can see, So long lives this and this gives life to thee.\n"
    "When, in disgrace with fortune and men's eyes, I all alone beweep my outcast state And "
    "trouble deaf heaven with my bootless cries And look upon myself and curse my fate, Wishing "
    "me like to one more rich in hope, Featured like him, like him with friends possess'd, "
    "Desiring this man's art and that man's scope, With what I most enjoy contented least; Yet in "
    "these thoughts myself almost despising, Haply I think on thee, and then my state, Like to "
    "the lark at break of day arising From sullen earth, sings hymns at heaven's gate; For thy "
    "sweet love remember'd such wealth brings That then I scorn to change my state with kings.\n"
    "Let me not to the marriage of true minds Admit impediments. Love is not love Which alters "
    "when it alteration finds, Or bends with the remover to remove: O no! it is an ever-fixed "
    "mark That looks on tempests and is never shaken; It is the star to every wandering bark, "
    "Whose worth's unknown, although his height be taken.\n";
